"""A real browser on the page as it lies on disk. Debian's chromium is used; nothing is downloaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opening import INDEX, OpenPage
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Open for one module: Playwright keeps an event loop on this thread, in which other tests couldn't run theirs."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium); it shows the page to its tests")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox"],  # root in a container has no sandbox to use
        )
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens the page, with a hash and a context of choice; afterwards, whatever it complained about is a failure."""
    complaints: list[str] = []
    contexts = []

    def opened(hash_: str = "", *, address: str = INDEX, width: int = 1280, **context: Any) -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **context))
        page = contexts[-1].new_page()
        page.set_default_timeout(5000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: None if request.url.startswith(root) else complaints.append(request.url))
        root = address.rsplit("/", 1)[0]
        page.goto(address + hash_)
        page.evaluate("document.fonts.ready")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture
def shown() -> Callable[[Page], tuple[str, str, str]]:
    """The three figures as the page shows them."""

    def read(page: Page) -> tuple[str, str, str]:
        page.wait_for_function(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        )
        values = page.locator("#equation .number").all_inner_texts()
        return values[0], values[1], values[2]

    return read


@pytest.fixture
def bench_file(tmp_path: Path) -> Path:
    """What `bench sweep` and `plan --measure` write, in one file."""
    cells: list[dict[str, Any]] = []
    for workload, gain in (("chat", 1.3), ("edit", 1.9)):
        for method, rates in (("off", []), ("fixed:4", [0.6, 0.4, 0.3, 0.2]), ("<b>auto</b>", [0.6, 0.4])):
            for concurrency in (1, 4, 16):
                speedup = 1.0 if method == "off" else gain / concurrency**0.25
                cells.append(
                    {
                        "method": method,
                        "workload": workload,
                        "concurrency": concurrency,
                        "temperature": 0.0,
                        "output_throughput": 50 * speedup,
                        "plain_throughput": 50.0,
                        "speedup": speedup,
                        "acceptance_length": 1 + sum(rates),
                        "acceptance_rate": sum(rates) / len(rates) if rates else 0.0,
                        "spec_decode_per_position_acceptance_rates": rates,
                        "identical": True,
                    }
                )
    for rows in (1, 4, 8, 32):
        cells.append({"kind": "pass", "rows": rows, "cached": 512, "batch": 1, "pass_ms": max(4.0, rows)})
    cells.append({"kind": "host", "host_ms": 0.3})
    path = tmp_path / "sweep.json"
    path.write_text(
        json.dumps({"meta": {"model": "some-model", "machine": {"processor": "some machine"}}, "cells": cells})
    )
    return path
