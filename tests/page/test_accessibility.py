"""axe-core finds nothing, in any scheme, width and state; and the page can be walked through by keyboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe import violations
from opening import OpenPage


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe(open_page: OpenPage, bench_file: Path, scheme: str, width: int) -> None:
    page = open_page(width=width, color_scheme=scheme, reduced_motion="reduce")
    page.get_by_role("button", name="n-gram, editing").click()
    page.get_by_role("slider", name="Draft cost c").press("End")  # a loss, with its own colours
    page.locator("#file").set_input_files(bench_file)
    for summary in page.get_by_text("As a table").all():
        summary.click()
    page.locator("#equation .number").first.click()
    assert violations(page) == []


def test_axe_at_first_sight_and_with_faults(open_page: OpenPage) -> None:
    page = open_page("#a=7", reduced_motion="reduce")
    assert violations(page) == []
    page.evaluate("foredraft.own.take('bad.json', '{')")
    assert violations(page) == []


FOCUSED = """() => {
  const { id, dataset, ariaLabel, textContent, localName } = document.activeElement;
  return localName === "body" ? "" : id || dataset.value || dataset.bind || ariaLabel || textContent;
}"""


def test_tab_reaches_every_control_in_order_and_never_gets_stuck(open_page: OpenPage) -> None:
    page = open_page(reduced_motion="reduce")
    seen: list[str] = []
    for _ in range(400):
        page.keyboard.press("Tab")
        name = page.evaluate(FOCUSED)
        if not name:
            break
        seen.append(name)
    assert len(seen) < 400
    wanted = [
        "play",
        "step",
        "fast",
        "acceptance",
        "length",
        "draft-cost",
        "tokens",
        "cost",
        "speedup",
        "use-best",
        "machine",
    ]
    positions = [seen.index(name) for name in wanted]
    assert positions == sorted(positions)
    assert {"batch", "context", "map-best", "file"} <= set(seen)
    assert "Acceptance of draft 5, given those before it" in seen
