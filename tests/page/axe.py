"""axe-core on a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

__all__ = ["violations"]

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Page) -> list[str]:
    """What it finds, a line each."""
    page.evaluate(AXE)
    page.wait_for_timeout(300)  # colours finish their transitions
    found: dict[str, Any] = page.evaluate("axe.run(document, { resultTypes: ['violations'], preload: false })")
    return [
        f"{v['id']}: {node['html'][:160]} {node['failureSummary']}" for v in found["violations"] for node in v["nodes"]
    ]
