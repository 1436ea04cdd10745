"""Dropping a file of one's own: benchmarks, pass times, a plan, and what makes no sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from opening import OpenPage
from playwright.sync_api import Page, expect

Shown = Callable[[Page], tuple[str, str, str]]

DROP = """([name, text]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([text], name, { type: "application/json" }));
  dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


def test_a_sweep_becomes_lines_and_a_table(open_page: OpenPage, bench_file: Path) -> None:
    page = open_page()
    page.evaluate(DROP, [bench_file.name, bench_file.read_text()])
    expect(page.locator("#drop-status")).to_have_text("Read “sweep.json”.")
    summary = page.locator("#measured-summary")
    expect(summary).to_contain_text("some-model, some machine. 18 cells")
    expect(summary).to_contain_text("same as plain decoding’s in every cell")
    expect(summary).to_contain_text("4 measured passes")
    expect(summary).to_contain_text("1 cell of another kind was left aside")
    assert page.locator("#measured-table tbody tr").count() == 18
    assert page.locator("#measured-table b").count() == 0  # a method's name is text, whatever it looks like
    chart = page.locator("#measured-chart")
    chart.scroll_into_view_if_needed()
    expect(chart.locator("canvas")).to_be_visible()
    expect(chart).to_have_attribute("aria-label", "Chart of measured speedup against requests at once. "
        "off: 1.00×, 1.00×, 1.00×; fixed:4: 1.30×, 0.92×, 0.65×; <b>auto</b>: 1.30×, 0.92×, 0.65×.")  # fmt: skip
    page.get_by_label("Workload").select_option("edit")
    expect(chart).to_have_attribute("aria-label", "Chart of measured speedup against requests at once. "
        "off: 1.00×, 1.00×, 1.00×; fixed:4: 1.90×, 1.34×, 0.95×; <b>auto</b>: 1.90×, 1.34×, 0.95×.")  # fmt: skip


def test_one_cell_goes_into_the_dials(open_page: OpenPage, bench_file: Path, shown: Shown) -> None:
    page = open_page()
    page.locator("#file").set_input_files(bench_file)
    page.get_by_role("button", name="Use fixed:4, edit, 1 at once").click()
    tokens, _, speedup = shown(page)
    assert tokens == "2.50"
    assert float(speedup.rstrip("×")) == pytest.approx(1.9, abs=0.02)
    page.wait_for_function("location.hash.includes('k=0.6,0.6667,0.75,0.6667')")


def test_measured_passes_replace_the_data_sheet(open_page: OpenPage, bench_file: Path) -> None:
    page = open_page("#a=0.75&g=4&c=0.15&b=64")
    page.locator("#file").set_input_files(bench_file)
    expect(page.locator("#source-note")).to_contain_text(
        "some-model (sweep.json). Up to 32 rows and 512 cached tokens."
    )
    assert page.get_by_label("Machine", exact=True).is_disabled()
    assert page.locator("[data-value=plainTime]").inner_text() == "4.00 ms"
    assert page.locator("[data-value=verifyTime]").inner_text() == "5.00 ms"
    page.locator(".scrub[data-bind=batch]").first.press("End")
    expect(page.locator("#source-note")).to_contain_text("beyond")
    page.get_by_role("button", name="Forget this file").click()
    expect(page.locator("#source-note")).to_be_hidden()
    assert page.get_by_label("Machine", exact=True).is_enabled()


def test_a_plan_sets_the_dials(open_page: OpenPage, shown: Shown) -> None:
    page = open_page()
    answer = {"acceptance": 0.5, "draft_length": 2, "draft_cost": 0.2, "tokens_per_cycle": 1.75}
    page.evaluate(DROP, ["plan.json", json.dumps(answer)])
    expect(page.locator("#drop-status")).to_contain_text("The dials now hold")
    assert shown(page) == ("1.75", "1.40", "1.25×")


def test_measured_drafters_set_their_cost(open_page: OpenPage) -> None:
    page = open_page("#a=0.8&g=4&c=0.15")
    drafts = [
        {"kind": "draft", "method": "ngram", "draft_length": 8, "draft_cost": 0.0038},
        {"kind": "draft", "method": "<b>head</b>", "draft_length": 40, "draft_cost": 1.7},
        {"kind": "draft", "method": "lazy", "draft_length": 0, "draft_cost": None},
    ]
    page.evaluate(DROP, ["machine.json", json.dumps({"cells": [GOOD_PASS, *drafts]})])
    buttons = page.get_by_role("group", name="Your drafters, measured").get_by_role("button")
    expect(buttons).to_have_text(["ngram, c = 0.004", "<b>head</b>, c = 1.00"])
    buttons.first.click()
    expect(page.locator("#drop-status")).to_have_text("The dials now hold the cost of ngram: g = 8, c = 0.004.")
    page.wait_for_function("location.hash.startsWith('#a=0.8&g=8&c=0.004&')")
    buttons.last.click()
    page.wait_for_function("location.hash.startsWith('#a=0.8&g=16&c=1&')")
    page.evaluate(DROP, ["machine.json", json.dumps({"cells": [GOOD_PASS]})])
    expect(page.locator("#measured-drafters")).to_be_hidden()


GOOD_PASS = {"kind": "pass", "rows": 1, "cached": 0, "pass_ms": 1.0}


MALFORMED = {
    "{nope": "it isn’t valid JSON",
    "": "it isn’t valid JSON",
    "null": "no “cells”",
    "[1, 2]": "no “cells”",
    '{"cells": []}': "no benchmark and no measured pass",
    '{"cells": [7]}': "cell 1 is 7",
    json.dumps({"cells": [GOOD_PASS, {**GOOD_PASS, "rows": -3}]}): "cell 2 has rows -3",
    json.dumps({"cells": [{**GOOD_PASS, "pass_ms": "fast"}]}): 'pass_ms "fast"',
    json.dumps({"cells": [GOOD_PASS, {"kind": "draft", "method": "x", "draft_cost": -1}]}): "draft_length nothing",
    '{"cells": [{"method": "auto", "speedup": "twice"}]}': "speedup",
    '{"cells": [{"method": "auto", "speedup": 1.5, "concurrency": 0}]}': "concurrency 0",
    '{"tokens_per_cycle": 3, "acceptance": 3, "draft_length": 4, "draft_cost": 0.1}': "outside what this page shows",
}


def test_a_malformed_file_is_one_sentence_and_changes_nothing(open_page: OpenPage, bench_file: Path) -> None:
    page = open_page("#a=0.5&g=2&c=0.2")
    page.locator("#file").set_input_files(bench_file)
    expect(page.locator("#measured")).to_be_visible()

    def everything() -> tuple[str, str, str]:
        state = page.evaluate("JSON.stringify(foredraft.state.get())")
        return state, page.locator("#measured").inner_text(), page.locator("#equation").inner_text()

    before = everything()
    for text, words in MALFORMED.items():
        page.evaluate(DROP, ["bad.json", text])
        status = page.locator("#drop-status")
        expect(status).to_contain_text("“bad.json” couldn’t be used")
        expect(status).to_contain_text(words)
        expect(status).to_contain_text("Nothing was changed.")
        assert everything() == before
