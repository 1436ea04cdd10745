"""`foredraft bench serve`: its arithmetic, and a run against a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_server import listening, load_tiny, tiny_service

from foredraft.bench.serving import LoadPlan, Sample, summarise
from foredraft.cli.main import main
from foredraft.errors import ConfigError


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "serve", *map(str, arguments)])
    out, err = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, out, err


def test_summary_by_hand() -> None:
    samples = [
        Sample(ttft=0.1, latency=0.5, gaps=[0.1, 0.3], input_tokens=10, output_tokens=5),
        Sample(ttft=0.3, latency=1.3, gaps=[0.5, 0.5], input_tokens=20, output_tokens=11),
        Sample(error="status 500"),
    ]
    result = summarise(samples, 2.0, {"ttft": 200, "tpot": 150})
    assert (result["completed"], result["failed"]) == (2, 1)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (30, 16)
    assert result["output_throughput"] == 8
    assert result["request_throughput"] == 1
    assert result["request_goodput"] == 0.5
    assert result["mean_ttft_ms"] == pytest.approx(200)
    assert result["p99_ttft_ms"] == pytest.approx(100 + 200 * 0.99)
    assert result["mean_tpot_ms"] == pytest.approx(100)  # (0.5 - 0.1) / 4 and (1.3 - 0.3) / 10
    assert result["median_itl_ms"] == pytest.approx(400)
    assert result["mean_e2el_ms"] == pytest.approx(900)
    assert result["errors"] == ["status 500"]


def test_nothing_completed() -> None:
    result = summarise([Sample(error="no")], 1.0, {})
    assert result["completed"] == 0
    assert "mean_ttft_ms" not in result


@pytest.mark.parametrize(
    "wrong", [{"request_rate": 0}, {"burstiness": -1}, {"max_concurrency": 0}, {"goodput": {"x": 1}}]
)
def test_plans_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LoadPlan(base_url="http://localhost", **wrong)


@pytest.mark.parametrize("namespace", ["foredraft", "vllm"])
def test_a_run(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], namespace: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Question {number}"}) + "\n" for number in range(8)))
    service = tiny_service(lambda: load_tiny(tiny_checkpoint), metrics_namespace=namespace)
    with listening(service) as address:
        flags = ["--base-url", address, "--dataset", prompts, "--max-tokens", 30, "--request-rate", 200]
        code, out, err = run(capsys, *flags, "--max-concurrency", "1,4", "--goodput", "e2el:60000", "--json")
        assert (code, err) == (0, "")
        first, second = json.loads(out)["runs"]
        for result, concurrency in ((first, 1), (second, 4)):
            assert result["max_concurrency"] == concurrency
            assert (result["completed"], result["failed"]) == (8, 0)
            assert result["total_output_tokens"] == 8 * 30
            assert 0 < result["mean_ttft_ms"] <= result["mean_e2el_ms"]
            assert result["request_goodput"] == result["request_throughput"]
            assert result["spec_decode_acceptance_length"] > 1
            rates = result["spec_decode_per_position_acceptance_rates"]
            assert sum(rates) == pytest.approx(result["spec_decode_acceptance_length"] - 1)
            assert rates == sorted(rates, reverse=True)
        code, out, _ = run(capsys, *flags)
        assert code == 0
        assert "acceptance length" in out
        assert "TTFT ms: mean" in out


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--base-url", "http://127.0.0.1:9", "--num-prompts", 1)
    assert code == 2
    assert "No server answers at http://127.0.0.1:9" in err
