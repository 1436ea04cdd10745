"""The micro benchmark on a tiny model: the right things are run, and the cells say what they are."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from models import tiny_target

from foredraft.bench.host_time import measure_host
from foredraft.bench.memory import peak_resident_mb, reset_peak, resident_mb
from foredraft.bench.micro import KINDS, MicroPlan, measure_micro, measure_startup
from foredraft.bench.passes import measure_passes, measure_prefill, measure_sampling
from foredraft.bench.products import products_of
from foredraft.bench.report import as_json, micro_tables
from foredraft.engine.open_target import EngineArgs
from foredraft.errors import ConfigError


def test_pass_cells() -> None:
    target = tiny_target()
    cells = measure_passes(target, [1, 4], [8, 32], repeat=3)
    assert [(cell.rows, cell.cached, cell.batch) for cell in cells] == [(1, 8, 1), (4, 8, 1), (1, 32, 1), (4, 32, 1)]
    for cell in cells:
        assert cell.products_ms is not None
        assert cell.products_ms > 0
        assert cell.over_products == pytest.approx(cell.pass_ms / cell.products_ms)
        assert cell.fastest_ms <= cell.pass_ms
    assert cells[0].over_fewest_rows == 1
    assert cells[1].over_fewest_rows == pytest.approx(cells[1].pass_ms / cells[0].pass_ms)


def test_batched_pass_spreads_its_rows() -> None:
    [cell] = measure_passes(tiny_target(), [5], [8], batch=2, repeat=1)
    assert (cell.rows, cell.cached, cell.batch) == (5, 16, 2)
    with pytest.raises(ConfigError, match="rows 1 is below batch 2"):
        measure_passes(tiny_target(), [1, 4], [8], batch=2)


def test_products_are_all_linear_layers_at_the_row_count() -> None:
    decoder = tiny_target().decoder
    seen: list[torch.Size] = []
    model = decoder.model  # type: ignore[attr-defined]

    def run_pass() -> torch.Tensor:
        return torch.as_tensor(model(input_ids=torch.tensor([[3, 4, 5]]), use_cache=False).logits)

    model.set_attn_implementation("eager")
    try:
        run = products_of(decoder, 3, run_pass)
    finally:
        model.set_attn_implementation("foredraft")
    assert run is not None
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    run()
    for hook in hooks:
        hook.remove()
    assert len(seen) == 3 * 7 + 1, "seven products a layer, and the head"
    assert all(shape[-2] == 3 for shape in seen)


def test_decoder_may_run_its_own_products() -> None:
    class Own:
        calls: list[int] = []  # noqa: RUF012 - one test's note

        def run_products(self, rows: int) -> None:
            self.calls.append(rows)

    run = products_of(Own(), 7, lambda: torch.zeros(0))  # type: ignore[arg-type]
    assert run is not None
    run()
    assert Own.calls == [7]
    assert products_of(object(), 7, lambda: torch.zeros(0)) is None  # type: ignore[arg-type]


def test_prefill_and_sampling_cells() -> None:
    target = tiny_target()
    prefill = measure_prefill(target, 40, repeat=2)
    assert (prefill.kind, prefill.rows) == ("prefill", 40)
    assert 0 < prefill.fastest_ms <= prefill.prefill_ms
    passes = measure_passes(target, [1, 4], [8], repeat=2)
    cells = measure_sampling(target, [1, 4, 5], passes, repeat=2)
    assert len(cells) == 9
    shares = {(cell.params, cell.rows): cell.share_of_pass for cell in cells}
    assert shares["greedy", 5] is None
    assert (shares["greedy", 4] or 0) > 0


def test_host_cells_have_the_rows_that_were_asked_for() -> None:
    cells = measure_host(tiny_target(), [1, 3])
    assert [(cell.temperature, cell.rows) for cell in cells] == [(0.0, 1), (0.0, 3), (1.0, 1), (1.0, 3)]
    assert all(cell.steps >= 20 and 0 < cell.host_ms <= cell.host_ms_p90 for cell in cells)


def test_all_kinds_of_a_loaded_target_in_json_and_tables() -> None:
    plan = MicroPlan(rows=(1, 2), cached=(8,), prefill=16, repeat=1)
    cells = measure_micro(tiny_target(), plan)
    assert {cell.kind for cell in cells} == {"pass", "prefill", "sampling", "host"}
    report = json.loads(as_json({}, cells))
    assert report["cells"] == [asdict(cell) for cell in cells]
    first = report["cells"][0]
    assert set(first) >= {"kind", "rows", "cached", "pass_ms", "products_ms"}
    assert [table.title for table in micro_tables(cells)] == ["pass", "prefill", "sampling", "host"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"kinds": ["pass", "speed"]}, "kind 'speed' is unknown; use one of " + ", ".join(KINDS)),
        ({"rows": [4, 0]}, "rows is 0"),
        ({"rows": []}, "rows is empty"),
        ({"cached": [0]}, "cached is 0"),
        ({"repeat": 0}, "repeat is 0"),
    ],
)
def test_senseless_plans_are_refused(values: dict[str, list[int]], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        MicroPlan(**values)  # type: ignore[arg-type]


def test_context_too_short_for_the_pass() -> None:
    with pytest.raises(ConfigError, match="304 tokens are more than the 256 that tiny-llama can hold"):
        measure_passes(tiny_target(), [48], [256])


def test_peak_memory_is_reset() -> None:
    block = torch.ones(25_000_000)  # 100 MB
    high = peak_resident_mb()
    assert high >= resident_mb() - 1
    del block
    reset_peak()
    assert peak_resident_mb() < high - 50


@pytest.mark.slow
def test_the_default_model_is_not_downloaded_to_time_its_start(default_model: Path) -> None:
    cells = measure_startup(EngineArgs(model="smollm2-135m"), MicroPlan(kinds=["load", "memory"]))
    assert [cell.kind for cell in cells] == ["load", "load", "memory"]
    assert default_model.is_file()
