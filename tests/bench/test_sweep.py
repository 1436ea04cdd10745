"""The sweep: its methods, its summary, its pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from models import tiny_target

from foredraft.bench.cells import OfflineCell
from foredraft.bench.offline import OFF, Method, Plan, measure_offline
from foredraft.bench.report import as_json, sweep_table
from foredraft.bench.sweep import join_workloads, summarise, sweep_methods
from foredraft.bench.workloads import EncodedPrompt
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError


def test_methods() -> None:
    methods = sweep_methods(["fixed:4", "auto", "off"], drafter="ngram")
    assert [method.name for method in methods] == ["off", "fixed:4", "auto"]
    assert methods[0] == OFF
    assert methods[1].config == {"method": "ngram", "controller": "off", "num_speculative_tokens": 4}
    assert methods[2].config == {"method": "ngram", "controller": "auto"}
    for name in ("fixed", "fixed:0", "fixed:x", "best", ""):
        with pytest.raises(ConfigError, match=r"use off, auto, or fixed:K"):
            sweep_methods([name])
    with pytest.raises(ConfigError, match="'nothing' is unknown"):
        sweep_methods(["fixed:2"], drafter="nothing")


def test_quote_and_json_are_one_workload() -> None:
    prompts = [EncodedPrompt((3,), name, name) for name in ("chat", "quote", "json")]
    assert [prompt.workload for prompt in join_workloads(prompts)] == ["chat", "quote+json", "quote+json"]


@pytest.fixture(scope="module")
def cells() -> list[OfflineCell]:
    """Measured on a tiny model, with throughputs set by hand."""
    target = tiny_target()
    plan = Plan([OFF, Method("fixed:2"), Method("fixed:4"), Method("auto")], [0.0], [1, 2], max_tokens=2)
    prompts = [EncodedPrompt((3, 4, 5), "chat", "one"), EncodedPrompt((5, 6), "chat", "two")]
    measured = measure_offline(target, lambda method: Engine(target), prompts, plan)
    speeds = {"off": 100.0, "fixed:2": 80.0, "fixed:4": 160.0, "auto": 152.0}
    return [
        replace(cell, output_throughput=speeds[cell.method], plain_throughput=100.0, speedup=speeds[cell.method] / 100)
        for cell in measured
    ]


def test_summary_compares_auto_with_plain_and_best(cells: list[OfflineCell]) -> None:
    points = summarise(cells)
    assert [(point.workload, point.concurrency) for point in points] == [("chat", 1), ("chat", 2)]
    for point in points:
        assert point.auto_over_off == pytest.approx(1.52)
        assert point.auto_over_best_fixed == pytest.approx(0.95)
        assert (point.best_fixed_method, point.worst_fixed_method) == ("fixed:4", "fixed:2")
        assert point.worst_fixed_over_off == pytest.approx(0.8)
    report = json.loads(as_json({}, cells, points))
    assert [point["off"] for point in report["summary"]] == [100, 100]
    assert sweep_table(cells, points).row_count == 2


def test_summary_without_auto_or_fixed(cells: list[OfflineCell]) -> None:
    [point, _] = summarise([cell for cell in cells if cell.method == "off"])
    assert point.off == 100
    assert point.auto is point.best_fixed is point.auto_over_off is point.auto_over_best_fixed is None


def test_pictures(cells: list[OfflineCell], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from foredraft.bench.plot import check_plots, draw_sweep

    check_plots(tmp_path / "plots")
    paths = draw_sweep(cells, tmp_path / "plots")
    assert [path.name for path in paths] == ["chat.svg", "chat.png"]
    picture = paths[0].read_text()
    assert picture.count('id="line2d_') > 4
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can't be written"):
        check_plots(tmp_path / "file" / "plots")
