"""The page's arithmetic is the package's: the same vectors, the same data sheets, the same figures under load."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from opening import OpenPage

from foredraft import economics

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "economics.json").read_text(encoding="utf-8"))["vectors"]

RUN_ALL = """(vectors) => {
  const { economics } = foredraft;
  const first = (name) => vectors.find((vector) => vector.function === name).arguments;
  const passTimes = {
    roofline: economics.roofline(...first("roofline_time").slice(0, 2)),
    measured: economics.measuredPasses(first("measured_time")[0]),
  };
  const named = (args) => args.map((value) => passTimes[value] ?? value);
  const adapted = {
    roofline_time: (machine, model, ...point) => economics.roofline(machine, model)(...point),
    measured_time: (points, ...point) => economics.measuredPasses(points)(...point),
    best_tree_tokens: (levels, nodes) => economics.treeTokens(economics.bestTree(levels, nodes)),
  };
  const camel = (name) => name.replace(/_(\\w)/g, (_, letter) => letter.toUpperCase());
  const formula = (name) => adapted[name] ?? economics[camel(name)];
  return vectors.map((vector) => formula(vector.function)(...named(vector.arguments)));
}"""


def same(found: object, wanted: object) -> bool:
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(same(found[k], v) for k, v in wanted.items())
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return math.isclose(found, wanted, rel_tol=1e-12, abs_tol=1e-15)
    return found == wanted


def test_shared_vectors(open_page: OpenPage) -> None:
    found = open_page().evaluate(RUN_ALL, VECTORS)
    wrong = [(vector, value) for vector, value in zip(VECTORS, found, strict=True) if not same(value, vector["result"])]
    assert not wrong, f"{len(wrong)} of {len(VECTORS)} differ, first: {wrong[0]}"


def test_data_sheets_are_those_of_the_package(open_page: OpenPage) -> None:
    presets: dict[str, Any] = open_page().evaluate("foredraft.presets")
    machines = {m["id"]: economics.Machine(m["flops_per_second"], m["bytes_per_second"]) for m in presets["machines"]}
    assert machines == dict(economics.MACHINES)
    fields = ("parameters", "layers", "query_width", "key_value_width", "bytes_per_parameter", "cache_bytes")
    models = {m["id"]: economics.ModelShape(*(m[field] for field in fields)) for m in presets["models"]}
    assert models == dict(economics.MODELS)


def test_families_make_sense_and_say_whether_they_were_measured(open_page: OpenPage) -> None:
    presets: dict[str, Any] = open_page().evaluate("foredraft.presets")
    assert presets["source"]
    assert isinstance(presets["illustrative"], bool)
    for family in presets["families"]:
        survival = economics.survival_from_conditional(family["acceptance"])
        assert economics.tokens_from_survival(survival, family["length"]) > 1
        assert 0 <= family["draft_cost"] <= 1
        assert 0 <= family["second_chance"] <= 1


@pytest.mark.parametrize(
    ("machine", "model", "batch", "context"),
    [("h200", "llama-3.1-8b", 64, 1024), ("cpu", "smollm2-135m", 4, 256), ("a100", "llama-3.1-70b", 200, 16384)],
)
def test_figures_under_load(open_page: OpenPage, machine: str, model: str, batch: int, context: int) -> None:
    page = open_page(f"#a=0.8&g=5&c=0.05&m={machine}&q={model}&b={batch}&x={context}")
    time = economics.roofline(economics.MACHINES[machine], economics.MODELS[model])
    load = {"context": context, "batch": batch}
    survival = economics.survival_curve(0.8, 16)
    draft_time = economics.relative_draft_time(0.05, time, **load)
    now = economics.cycle(survival, 5, time, draft_time, **load)
    best = economics.best_cycle(survival, time, draft_time, **load)
    paying = economics.largest_paying_batch(survival, 5, 0.05, time, context=context, largest=512)
    wanted = {
        "loadSpeedup": f"{now.speedup:.2f}×",
        "loadBestSpeedup": f"{best.speedup:.2f}×",
        "loadBestLength": str(best.length),
        "payingBatch": "512 or more" if paying == 512 else str(paying),
        "rows": f"{batch * 6:,}",
    }
    assert {name: page.locator(f"[data-value={name}]").first.inner_text() for name in wanted} == wanted
