"""`foredraft demo` on a tiny model, and, among the slow tests, on the default one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from command_line import DRAFTING, Cli
from tiny_checkpoint import save_tiny_checkpoint

from foredraft.cli.demo_prompts import ARTICLE, CODE, DEMO_PROMPTS

CELL_KEYS = {
    "method",
    "workload",
    "concurrency",
    "temperature",
    "output_throughput",
    "plain_throughput",
    "speedup",
    "acceptance_length",
    "acceptance_rate",
    "identical",
    "draft_s",
    "verify_s",
    "host_s",
}


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose context holds the demo's prompts, a token a byte."""
    return save_tiny_checkpoint(tmp_path_factory.mktemp("roomy"), context=2048)


def test_text_figures_and_table(cli: Cli, roomy: Path) -> None:
    done = cli("demo", "--model", roomy, "--max-tokens", 24, *DRAFTING)
    assert done.code == 0
    assert done.err == ""
    for prompt in DEMO_PROMPTS:
        assert done.out.count(f"{prompt.title}\n") == 1
    table = done.out[done.out.rindex("identical") :]
    for prompt in DEMO_PROMPTS:
        [row] = [line for line in table.splitlines() if line.strip().startswith(prompt.title)]
        plain, speculative, speedup, length, rate, identical = row.strip().removeprefix(prompt.title).split()
        assert float(speedup.rstrip("x")) == pytest.approx(float(speculative) / float(plain), rel=0.05)
        assert float(length) >= 1
        assert rate.endswith("%")
        assert identical == "yes"
        assert len(row) <= 80
    assert "‹" in done.out


def test_json_is_a_benchmark_result(cli: Cli, roomy: Path) -> None:
    done = cli("demo", "--model", roomy, "--max-tokens", 24, "--temperature", 0.5, "--seed", 3, "--json")
    assert done.err == ""
    result = done.json
    assert set(result) == {"meta", "cells"}
    assert result["meta"]["model"] == str(roomy)
    assert [cell["workload"] for cell in result["cells"]] == [prompt.workload for prompt in DEMO_PROMPTS]
    for cell in result["cells"]:
        assert set(cell) >= CELL_KEYS
        assert (cell["method"], cell["concurrency"], cell["temperature"]) == ("auto", 1, 0.5)
        assert cell["identical"] is True
        assert cell["total_output_tokens"] == 24
        assert cell["speedup"] == pytest.approx(cell["output_throughput"] / cell["plain_throughput"])
        seconds = cell["total_output_tokens"] / cell["output_throughput"]
        assert 0 < cell["draft_s"] + cell["verify_s"] + cell["host_s"] <= seconds


def test_the_prompts_are_what_they_say() -> None:
    ast.parse(CODE)
    assert 20 <= CODE.count("\n") <= 30
    assert 220 <= len(ARTICLE.split()) <= 280
    assert len({prompt.workload for prompt in DEMO_PROMPTS}) == 3


@pytest.mark.slow
def test_default_model(cli: Cli, default_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREDRAFT_DEFAULT_MODEL", str(default_model))
    cells = {cell["workload"]: cell for cell in cli("demo", "--json").json["cells"]}
    assert all(cell["identical"] for cell in cells.values())
    assert cells["quote"]["acceptance_length"] > 2
    # How many drafts of the edit pay is up to the processor and what else it does; how many come true isn't.
    everything = '{"method": "auto", "controller": "off"}'
    cells = {cell["workload"]: cell for cell in cli("demo", "--json", "-sc", everything).json["cells"]}
    assert all(cell["identical"] for cell in cells.values())
    assert cells["edit"]["acceptance_length"] > 3
    assert cells["quote"]["acceptance_length"] > 2
