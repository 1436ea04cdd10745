"""The server's pages in a browser: live numbers, readable in any scheme and width, within their own policy."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe import violations
from opening import OpenPage
from playwright.sync_api import Route, expect
from tiny_server import listening, load_tiny, tiny_service

from foredraft.page import page_directory, page_hash
from foredraft.server.settings import PlanPage

MEASURED = {"method": "suffix", "controller": "auto"}
BUSY = {
    "tokens_per_second": 431.25,
    "speedup_over_plain": 2.125,
    "running": 3,
    "waiting": 1,
    "cache_usage": 0.125,
    "explanation": "Verifies 9 of 16 drafts, 6.42 tokens in 6.3 ms (1019 tokens/s); plain decoding gives 2 tokens in "
    "5 ms (400 tokens/s). Expected gain: 2.55 times as fast.",
    "reasons": [
        {"reason": "pays", "words": "drafts verified", "steps": 60},
        {"reason": "rests", "words": "drafts not looked for, after little success", "steps": 30},
        {"reason": "explores", "words": "drafts tried out", "steps": 10},
    ],
    "step_seconds": {"draft": 0.1, "verify": 0.8, "host": 0.1},
    "drafters": [
        {
            "method": "suffix",
            "drafted": 12345,
            "accepted": 6789,
            "acceptance_rate": 0.55,
            "acceptance_length": 3.25,
            "survival": [0.9**place for place in range(1, 33)],
        }
    ],
}


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOREDRAFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        service = tiny_service(
            lambda: load_tiny(tiny_checkpoint, speculative_config=MEASURED),
            plan=PlanPage(page_directory(), page_hash),
            method="suffix",
        )
        with listening(service) as address:
            yield address


def complete(server: str, **body: Any) -> None:
    content = json.dumps({"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, **body}).encode()
    request = urllib.request.Request(f"{server}/v1/completions", content, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["choices"][0]["text"]


def busy(server: str) -> str:
    """A status with fixed numbers in the places of the server's own."""
    with urllib.request.urlopen(f"{server}/status.json", timeout=60) as answer:
        status = json.load(answer)
    assert BUSY.keys() <= status.keys()
    if status["drafters"]:
        assert status["drafters"][0].keys() == BUSY["drafters"][0].keys()  # type: ignore[index]
    return json.dumps({**status, **BUSY})


def test_it_shows_what_the_server_does(open_page: OpenPage, server: str) -> None:
    page = open_page(address=f"{server}/")
    expect(page.get_by_role("heading", level=1)).to_have_text("tiny")
    expect(page.locator("#state")).to_have_text("ready")
    complete(server)
    expect(page.locator("#finished")).to_have_text("1")
    expect(page.locator("#explanation")).to_contain_text("tokens/s")
    expect(page.locator("#drafters")).to_contain_text("suffix")
    assert page.title() == "tiny · foredraft"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1280])
def test_it_is_readable_in_any_scheme_and_width(open_page: OpenPage, server: str, scheme: str, width: int) -> None:
    status = busy(server)
    page = open_page(address=f"{server}/", width=width, color_scheme=scheme)
    page.route("**/status.json", lambda route: route.fulfill(body=status, content_type="application/json"))
    page.reload()
    expect(page.locator("#rate")).to_have_text("431.3")
    expect(page.locator("#speedup")).to_have_text("2.13×")
    expect(page.locator("#explanation")).to_contain_text("2.55 times as fast")
    expect(page.locator("#reasons li")).to_have_text(
        ["drafts verified 60%", "drafts not looked for, after little success 30%", "drafts tried out 10%"]
    )
    expect(page.locator("#phases li")).to_have_text(["drafting 10%", "target passes 80%", "everything else 10%"])
    expect(page.locator(".depths li").first).to_have_text("901")  # percent and place
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []


def test_it_says_when_the_server_is_gone_and_when_it_is_back(open_page: OpenPage, server: str) -> None:
    answers = ["no JSON"]

    def answer(route: Route) -> None:
        if answers:
            route.fulfill(body=answers[0])
        else:
            route.fallback()

    page = open_page(address=f"{server}/")
    page.route("**/status.json", answer)
    expect(page.locator("#state")).to_have_text("not reachable")
    answers.clear()
    expect(page.locator("#state")).to_have_text("ready")


def test_the_plan_opens_with_what_was_measured(open_page: OpenPage, server: str) -> None:
    complete(server, prompt="Once upon a time there was, once upon a time there was")
    page = open_page(address=f"{server}/plan")
    expect(page.get_by_role("heading", level=1)).to_have_text("When guessing pays")
    expect(page.locator("#verdict")).not_to_be_empty()
    assert "/plan/index.html" in page.url
