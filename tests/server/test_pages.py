"""The status page, the economics page and the API's own description."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tiny_server import client_of, load_tiny, tiny_service

from foredraft.engine.decision import Decision, Reason
from foredraft.page import page_directory, page_hash
from foredraft.server.activity import Activity, Window
from foredraft.server.pages import STATIC
from foredraft.server.settings import PlanPage
from foredraft.types import StepReport


def test_status_tells_what_happened(client: TestClient) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 50, "temperature": 0}
    client.post("/v1/completions", json=body)
    status = client.get("/status.json").json()
    assert status["state"] == "ready"
    assert status["model"] == "tiny"
    assert status["running"] == status["waiting"] == 0
    assert status["finished"] >= 1
    assert status["tokens_per_second"] > 0
    [drafter] = status["drafters"]
    assert drafter["method"] == "prediction"
    assert 0 < drafter["accepted"] <= drafter["drafted"]
    assert drafter["acceptance_length"] > 1
    assert status["speedup_over_plain"] > 0
    assert 0 < drafter["survival"][0] <= 1
    assert sorted(drafter["survival"], reverse=True) == drafter["survival"]
    assert status["decision"] is None
    assert "every draft is verified" in status["explanation"]


def test_the_last_decision_stays_and_reasons_are_counted() -> None:
    activity = Activity("ngram")
    assert activity.summary()["explanation"] == "Nothing was decoded yet."
    assert "there is no drafter" in Activity("off").summary()["explanation"]
    pays = Decision(3, 3.0, 6.0, 1.0, 5.0, Reason.PAYS, 4, 5.5)
    reading = StepReport("ngram", 0, 7, 7, 0)
    for decision in (pays._replace(nodes=0, reason=Reason.RESTS), pays, pays):
        activity.step(StepReport("ngram", 1, 4, 0, 10, drafted=[3], accepted=[2]), decision, 3)
    activity.step(reading, None, 0)
    status = activity.summary()
    assert status["explanation"] == pays.sentence
    assert (status["decision"]["reason"], status["decision"]["gain"]) == ("pays", pytest.approx(2.5))
    assert [(entry["reason"], entry["steps"]) for entry in status["reasons"]] == [("pays", 2), ("rests", 1)]
    assert status["reasons"][0]["words"] == "drafts verified"


def test_the_page_has_every_place_that_its_script_fills(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    script = client.get("/status.js").text
    places = set(re.findall(r"(?:show|byId|shares)\(\s*\"(\w+)\"", script))
    assert {"model", "explanation", "reasons", "phases", "drafters"} <= places
    for place in places:
        assert f'id="{place}"' in page.text
    fields = set(re.findall(r"status\.(\w+)", script)) - {"json"}
    assert fields <= client.get("/status.json").json().keys()
    assert client.get("/status.css").status_code == 200
    assert "http" not in (STATIC / "status.html").read_text().replace("http-equiv", "")


def test_plan_opens_with_live_numbers(tiny_checkpoint: Path) -> None:
    service = tiny_service(lambda: load_tiny(tiny_checkpoint), plan=PlanPage(page_directory(), page_hash))
    with client_of(service) as client:
        before = client.get("/plan", follow_redirects=False)
        assert before.status_code == 307
        assert before.headers["location"] == "plan/index.html"
        client.post("/v1/completions", json={"prompt": "Once upon", "max_tokens": 60, "temperature": 0})
        location = client.get("/plan", follow_redirects=False).headers["location"]
        found = re.fullmatch(r"plan/index\.html#a=([\d.]+)&g=(\d+)&c=([\d.e-]+)", location)
        assert found is not None
        assert 0 < float(found[1]) <= 1
        assert 1 <= int(found[2]) <= 6
        assert "<html" in client.get("/plan/index.html").text


def test_no_plan_without_the_page(client: TestClient) -> None:
    assert client.get("/plan").status_code == 404


def test_openapi_describes_the_routes(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/detokenize", "/health"} <= set(
        paths
    )


def test_a_window_forgets() -> None:
    now = 0.0
    activity = Activity("ngram", clock=lambda: now)
    report = StepReport("ngram", 1, 5, 0, 10, drafted=[4], accepted=[3], accepted_per_depth=[1, 1, 1])
    report.verify_seconds = 0.5
    for second in range(100):
        now = float(second)
        activity.step(report, None, 4)
    assert activity.recent(10.0).emitted == 44
    assert activity.recent(60.0).emitted == 244
    window = activity.recent(1.0)
    assert (window.alpha, window.acceptance_length) == (pytest.approx(0.75), 4.0)
    now = 1000.0
    assert activity.recent(10.0).steps == 0
    assert activity.log_line(10.0) is None
    assert Window().acceptance_length == 1.0


def test_the_log_line_has_vllms_words(client: TestClient) -> None:
    from foredraft.server.observer import EngineLoad

    activity = Activity("ngram")
    activity.load = EngineLoad(1, 2, 0.25, 0)
    report = StepReport("ngram", 1, 5, 7, 10, drafted=[4], accepted=[3], accepted_per_depth=[1, 1, 1])
    activity.step(report, None, 4)
    line = activity.log_line(10.0)
    assert line is not None
    assert "Avg prompt throughput: 0.7 tokens/s, Avg generation throughput: 0.4 tokens/s" in line
    assert "Running: 1 reqs, Waiting: 2 reqs" in line
    assert "Mean acceptance length: 4.00, Accepted throughput: 0.30 tokens/s" in line
    assert "Per-position acceptance rate: 1.000, 1.000, 1.000, Avg Draft acceptance rate: 75.0%" in line
