"""Metrics tell what happened, under vLLM's names; the dashboard asks for nothing that doesn't exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from tiny_server import client_of, load_tiny, tiny_service

from foredraft.engine.decision import Decision, Reason
from foredraft.server.metrics import Metrics

DASHBOARD = Path(__file__).parents[2] / "dashboards" / "grafana.json"
NAME = re.compile(r"foredraft_[a-z0-9_]+")


def read(client: TestClient) -> dict[str, float]:
    """Sums of samples by name."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


@pytest.mark.parametrize("namespace", ["foredraft", "vllm"])
def test_what_happened_is_counted(tiny_checkpoint: Path, namespace: str) -> None:
    prefix = {"foredraft": "foredraft_", "vllm": "vllm:"}[namespace]
    service = tiny_service(lambda: load_tiny(tiny_checkpoint), metrics_namespace=namespace, spec_decode_metrics=True)
    with client_of(service) as client:
        before = read(client)  # the warm-up isn't a request
        assert before[f"{prefix}request_success_total"] == 0
        assert before[f"{prefix}generation_tokens_total"] == 0
        stats = []
        for number in range(3):
            body = {"prompt": f"Prompt number {number}", "max_tokens": 40, "n": 2, "temperature": 0}
            stats.append(client.post("/v1/completions", json=body).json())
        after = read(client)
    speculation = [one["metrics"]["speculative_decoding"] for one in stats]
    assert after[f"{prefix}request_success_total"] == 6
    assert after[f"{prefix}generation_tokens_total"] == sum(one["usage"]["completion_tokens"] for one in stats)
    assert after[f"{prefix}spec_decode_num_draft_tokens_total"] == sum(one["num_draft_tokens"] for one in speculation)
    accepted = after[f"{prefix}spec_decode_num_accepted_tokens_total"]
    assert accepted >= sum(one["num_accepted_draft_tokens"] for one in speculation) > 0
    assert after[f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"] == accepted
    assert 0 < after[f"{prefix}spec_decode_num_drafts_total"] <= sum(one["num_spec_steps"] for one in speculation)
    assert after[f"{prefix}num_requests_running"] == after[f"{prefix}num_requests_waiting"] == 0
    for histogram, count in {
        "time_to_first_token_seconds": 3,
        "e2e_request_latency_seconds": 3,
        "request_queue_time_seconds": 3,
        "request_time_per_output_token_seconds": 3,
        "request_prompt_tokens": 3,
        "request_generation_tokens": 6,
    }.items():
        assert after[f"{prefix}{histogram}_count"] == count, histogram
    assert after[f"{prefix}prefix_cache_queries_total"] == sum(one["usage"]["prompt_tokens"] for one in stats)
    assert after["foredraft_step_seconds_count"] > 0
    assert "foredraft_controller_budget" in after


def test_the_controller_explains_itself() -> None:
    metrics = Metrics("tiny", method="ngram")
    metrics.decided(Decision(9, 6.0, 6.0, 2.0, 5.0, Reason.PAYS, 16, 5.5))
    metrics.decided(Decision(0, 2.0, 5.0, 2.0, 5.0, Reason.RESTS, 0, 4.5))
    metrics.decided(Decision(3, 3.0, 6.0, 2.0, 5.0, Reason.PAYS, 4, 5.0))
    samples = {
        (sample.name, sample.labels.get("reason")): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }
    decisions = {reason: samples["foredraft_controller_decisions_total", reason.value] for reason in Reason}
    assert decisions == {reason: {Reason.PAYS: 2, Reason.RESTS: 1}.get(reason, 0) for reason in Reason}
    assert samples["foredraft_controller_expected_tokens", None] == 1.5
    assert samples["foredraft_controller_pass_seconds", None] == 0.005
    assert samples["foredraft_controller_expected_gain", None] == pytest.approx(1.25)


def test_aborts_and_refusals_are_counted(tiny_checkpoint: Path) -> None:
    with client_of(tiny_service(lambda: load_tiny(tiny_checkpoint))) as client:
        client.post("/v1/completions", json={"prompt": "x", "temperature": -1})
        assert read(client)["foredraft_requests_rejected_total"] == 1


def test_the_dashboard_asks_for_metrics_that_exist(client: TestClient) -> None:
    client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 4})
    exported = set(read(client))
    board = json.loads(DASHBOARD.read_text())
    expressions = [
        target["expr"] for panel in board["panels"] if panel["type"] != "row" for target in panel.get("targets", ())
    ]
    asked = {name for expression in expressions for name in NAME.findall(expression)}
    assert len(asked) > 15
    assert asked <= exported, asked - exported
    assert all(panel.get("targets") for panel in board["panels"] if panel["type"] != "row")
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_two_servers_do_not_meet(client: TestClient, tiny_checkpoint: Path) -> None:
    with client_of(tiny_service(lambda: load_tiny(tiny_checkpoint))) as other:
        client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 4})
        assert read(other)["foredraft_generation_tokens_total"] == 0
