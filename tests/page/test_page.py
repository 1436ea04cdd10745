"""What a reader does on the page: drag, type, share the address, ask a number, pause the animation."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable

import pytest
from opening import OpenPage
from playwright.sync_api import Page, expect

from foredraft.page import page_directory

Shown = Callable[[Page], tuple[str, str, str]]


def test_reference_point(open_page: OpenPage, shown: Shown) -> None:
    page = open_page()
    assert shown(page) == ("3.05", "1.60", "1.91×")
    expect(page.locator("#verdict")).to_contain_text("Clear win. Each cycle writes 3.05 tokens")
    assert page.locator("[data-value=bestLength]").first.inner_text() == "4"


def test_it_works_from_a_server_too(open_page: OpenPage, shown: Shown) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(page_directory()))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = open_page("#a=0.5&g=2&c=0.2", address=f"http://127.0.0.1:{server.server_port}/index.html")
        assert shown(page) == ("1.75", "1.40", "1.25×")
        server.shutdown()


VERDICTS = {
    "#a=0.5&g=2&c=0.2": "Modest. ",
    "#a=0.5&g=2&c=0.4": "Break-even. ",
    "#a=0.3&g=8&c=0.4": "A loss: paying for compute to go slower. ",
    "#a=0.9&g=4&c=1": "A loss: paying for compute to go slower. ",
    "#a=0.9&g=0&c=0.1": "Break-even. Without drafts",
    "#a=1&g=16&c=0": "Clear win. ",
    "#a=0&g=16&c=1": "A loss: ",
}


def test_verdicts(open_page: OpenPage) -> None:
    page = open_page()
    for hash_, verdict in VERDICTS.items():
        page.evaluate("(hash) => { location.hash = hash; }", hash_)
        expect(page.locator("#verdict")).to_contain_text(verdict)
        text = page.locator("main").inner_text()
        assert "NaN" not in text
        assert "undefined" not in text


def test_sliders_move_by_keyboard_and_the_address_follows(open_page: OpenPage, shown: Shown) -> None:
    page = open_page()
    page.get_by_role("slider", name="Acceptance a").first.press("ArrowRight")
    page.get_by_role("slider", name="Draft length g").press("ArrowLeft")
    page.get_by_role("slider", name="Draft cost c").press("Home")
    assert shown(page) == ("2.78", "1.00", "2.78×")
    page.wait_for_function("location.hash === '#a=0.76&g=3&c=0'")
    page.reload()
    assert shown(page) == ("2.78", "1.00", "2.78×")


def test_an_edited_address_is_followed(open_page: OpenPage, shown: Shown) -> None:
    page = open_page()
    page.evaluate("location.hash = '#a=0.5&g=2&c=0.2&k=0.9,0.1'")
    page.wait_for_function("foredraft.state.get().curve !== null")
    assert shown(page) == ("1.99", "1.40", "1.42×")


def test_nonsense_in_the_address_is_named_and_ignored(open_page: OpenPage, shown: Shown) -> None:
    page = open_page("#a=7&g=2.5&c=0.2&k=0.5,,2&m=toaster&b=&unknown=1")
    assert shown(page) == ("3.05", "1.80", "1.69×")
    notice = page.get_by_role("alert")
    assert notice.locator("p").count() == 5
    for words in (
        "Acceptance “7”",
        "Draft length “2.5”",
        "The survival curve “0.5,,2”",
        "Machine “toaster”",
        "Batch “”",
    ):
        expect(notice).to_contain_text(words)
    notice.get_by_role("button", name="Dismiss").click()
    expect(notice).to_be_empty()


def test_numbers_in_the_text_can_be_dragged_and_typed(open_page: OpenPage) -> None:
    page = open_page()
    number = page.locator(".scrub[data-bind=length]").first
    number.evaluate("(number) => number.scrollIntoView({ block: 'center' })")
    box = number.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 4, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + 4 + 3 * 14 + 2, box["y"] + 8, steps=4)
    page.mouse.up()
    expect(number).to_have_text("7")
    number.press("ArrowDown")
    expect(number).to_have_text("6")
    number.press("End")
    expect(number).to_have_attribute("aria-valuenow", "16")
    context = page.locator(".scrub[data-bind=context]").first
    context.press("Home")
    expect(context).to_have_text("0")
    context.press("ArrowUp")
    assert page.evaluate("foredraft.state.get().context") >= 1


@pytest.mark.parametrize("hash_", ["#a=1&g=16&c=0&k=0.9,0.5&n=48&b=512", "#a=0&g=0&c=1&n=1&b=1&x=0"])
def test_every_number_explains_itself(open_page: OpenPage, hash_: str) -> None:
    page = open_page(hash_, reduced_motion="reduce")
    names = page.evaluate("[...new Set([...document.querySelectorAll('button.number')].map((b) => b.dataset.value))]")
    assert len(names) > 20
    box = page.get_by_role("dialog")
    for name in names:
        button = page.locator(f"button.number[data-value={name}]").first
        button.evaluate("(button) => { button.scrollIntoView({ block: 'center' }); button.focus(); button.click(); }")
        expect(box).to_be_visible()
        content = box.inner_text()
        assert not any(word in content for word in ("NaN", "undefined", "null", "Infinity")), (name, content)
        assert box.locator("math").count() >= 1
        assert box.evaluate(
            "(box) => { const r = box.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth; }"
        )
        page.keyboard.press("Escape")
        expect(box).to_be_hidden()
        assert button.evaluate("(button) => document.activeElement === button")


def test_survival_bars(open_page: OpenPage, shown: Shown) -> None:
    page = open_page()
    bar = page.get_by_role("slider", name="Acceptance of draft 2, given those before it")
    bar.press("PageDown")
    expect(bar).to_have_attribute("aria-valuenow", "65")
    page.wait_for_function("location.hash.includes('k=0.75,0.65,0.75')")
    assert shown(page)[0] == f"{1 + 0.75 + 0.75 * 0.65 * (1 + 0.75 + 0.75**2):.2f}"
    third = page.get_by_role("slider", name="Acceptance of draft 3, given those before it")
    third.scroll_into_view_if_needed()
    box = page.locator("#survival svg").bounding_box()
    grip = third.locator(".grab").bounding_box()
    assert box is not None
    assert grip is not None
    page.mouse.move(grip["x"] + 10, grip["y"] + 22)
    page.mouse.down()
    page.mouse.move(grip["x"] + 10, box["y"] + box["height"], steps=3)
    page.mouse.up()
    expect(third).to_have_attribute("aria-valuenow", "0")
    page.get_by_role("button", name="Back to one number").click()
    page.wait_for_function("foredraft.state.get().curve === null")
    expect(page.get_by_role("button", name="Back to one number")).to_be_hidden()


def test_families_set_the_dials(open_page: OpenPage, shown: Shown) -> None:
    page = open_page()
    before = shown(page)
    page.get_by_role("button", name="Medusa heads").click()
    expect(page.get_by_role("button", name="Medusa heads")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#preset-note")).to_contain_text("one guess per head", ignore_case=True)
    assert shown(page) != before
    page.get_by_role("slider", name="Acceptance a").first.press("ArrowRight")
    expect(page.get_by_role("button", name="Medusa heads")).to_have_attribute("aria-pressed", "false")


def test_charts_and_map_can_be_clicked(open_page: OpenPage) -> None:
    page = open_page("#a=0.75&g=9&c=0.15")
    page.get_by_role("button", name="Use the best length").click()
    page.wait_for_function("foredraft.state.get().length === 4")
    over = page.locator("#lengths-chart .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * (8.35 / 16.75), box["y"] + 50)
    page.wait_for_function("foredraft.state.get().length === 8")
    canvas = page.locator("#map")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] - 16, box["y"] + 14)
    page.wait_for_function("foredraft.state.get().batch > 480 && foredraft.state.get().context > 120000")


def test_charts_have_words_and_tables(open_page: OpenPage) -> None:
    page = open_page()
    for name, words in (
        ("lengths", "highest at 4 drafts with 1.91×"),
        ("trees", "The chain reaches"),
        ("batch", "With 4 drafts"),
    ):
        chart = page.locator(f"#{name}-chart")
        chart.scroll_into_view_if_needed()
        expect(chart.locator("canvas")).to_be_visible()
        assert words in (chart.get_attribute("aria-label") or "")
        figure = page.locator("figure", has=page.locator(f"#{name}-table"))
        figure.get_by_text("As a table").click()
        expect(figure.locator("tbody tr").nth(9)).to_be_visible()


WRITTEN = """() => [...document.querySelectorAll('.written > .word')].map((word) => word.textContent)"""


def test_the_animation_writes_the_true_text(open_page: OpenPage) -> None:
    """Whatever the drafter guesses, what stays is the text that plain decoding would write."""
    page = open_page("#a=0.6&g=5&c=0.05")
    page.get_by_role("button", name="Fast").click()
    page.wait_for_function("foredraft.cycle && document.querySelectorAll('.word.own').length > 6", timeout=15000)
    page.get_by_role("button", name="Pause").click()
    written = page.evaluate(WRITTEN)
    truth = page.evaluate("foredraft.words.map(({ word }) => word)")
    assert written == (truth * 3)[: len(written)]
    assert page.locator(".word.free").count() > 0
    expect(page.locator("#tally")).to_contain_text("passes in: plain")


def test_the_cycle_can_be_stepped_and_paused(open_page: OpenPage) -> None:
    page = open_page("#a=1&g=3&c=0.1")
    page.get_by_role("button", name="One cycle").click()
    expect(page.locator("#cycle-outcome")).to_contain_text(
        "All 3 drafts accepted: 4 tokens from one pass", timeout=8000
    )
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    assert page.locator(".chip.accepted").count() == 3
    assert page.locator(".chip.target").count() == 1


def test_stillness_is_respected(open_page: OpenPage) -> None:
    page = open_page("#a=0&g=3&c=0.1", reduced_motion="reduce")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    assert [page.locator(f".chip.{kind}").count() for kind in ("accepted", "rejected", "dead", "target")] == [
        0,
        1,
        2,
        1,
    ]
    before = page.locator("#tally").inner_text()
    page.wait_for_timeout(400)
    assert page.locator("#tally").inner_text() == before
    page.get_by_role("button", name="One cycle").click()
    assert page.locator("#tally").inner_text() != before
    expect(page.locator("#cycle-outcome")).to_contain_text("0 of 3 drafts accepted: 1 token from one pass")


@pytest.mark.parametrize("width", [320, 390, 768, 1440])
def test_nothing_sticks_out(open_page: OpenPage, width: int) -> None:
    page = open_page("#a=0.8&g=16&c=0.05&n=48", width=width)
    for y in range(0, page.evaluate("document.body.scrollHeight"), 1500):
        page.evaluate("(y) => scrollTo(0, y)", y)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_dock_keeps_the_numbers_at_hand(open_page: OpenPage) -> None:
    page = open_page()
    expect(page.locator("#dock")).to_be_hidden()
    page.locator("#small-title").scroll_into_view_if_needed()
    expect(page.locator("#dock")).to_be_visible()
    page.locator("#dock .scrub[data-bind=acceptance]").press("Home")
    expect(page.locator("#dock")).to_contain_text("0.63× A loss")
    page.evaluate("scrollTo(0, 0)")
    expect(page.locator("#dock")).to_be_hidden()
