"""`foredraft bench serve`: loads a running server and reports latencies, throughput and acceptance."""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foredraft.cli import bench_options
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from foredraft.bench.offline import Progress

__all__ = ["serve"]

LOAD = "Load"
FIGURES = (("mean", "mean"), ("median", "median"), ("p90", "90 %"), ("p99", "99 %"))


def serve(
    base_url: Annotated[str, typer.Option(metavar="URL", help="The server.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(metavar="NAME", help="[default: the first that it serves]")] = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", envvar="FOREDRAFT_API_KEY", show_envvar=False, help="The server's key.")
    ] = None,
    workload: bench_options.Workload = None,
    dataset: bench_options.Dataset = None,
    category: bench_options.Category = None,
    num_prompts: bench_options.NumPrompts = None,
    max_tokens: bench_options.MaxTokens = 128,
    predict: bench_options.Predict = False,
    temperature: Annotated[float, typer.Option(metavar="X", help="Of all requests.", rich_help_panel=LOAD)] = 0.0,
    request_rate: Annotated[
        float, typer.Option(metavar="X", help="Requests per second; inf is all at once.", rich_help_panel=LOAD)
    ] = float("inf"),
    burstiness: Annotated[
        float, typer.Option(metavar="X", help="1 is Poisson, below is burstier.", rich_help_panel=LOAD)
    ] = 1.0,
    max_concurrency: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Most requests in flight; each is a run.", rich_help_panel=LOAD),
    ] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:MS", help="An SLO, such as ttft:200; may be repeated.", rich_help_panel=LOAD),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of arrivals and requests.", rich_help_panel=LOAD)] = 0,
    json: bench_options.Json = False,
) -> None:
    """Send prompts to a running server at random times, and report what its users would notice.

    Any OpenAI-compatible server will do. Result keys are those of vLLM's benchmark.
    """
    if find_spec("aiohttp") is None:
        raise ConfigError("bench serve needs aiohttp, which is not installed; run pip install aiohttp")
    from foredraft.bench.serving import LoadPlan, load_server
    from foredraft.cli.bench import chosen_prompts, progress_bar

    prompts = chosen_prompts(workload, dataset, category, num_prompts)
    runs: list[dict[str, Any]] = []
    for concurrency in _concurrencies(max_concurrency):
        plan = LoadPlan(
            base_url=base_url,
            model=model,
            api_key=api_key,
            request_rate=request_rate,
            burstiness=burstiness,
            max_concurrency=concurrency,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            predict=predict,
            goodput=_slos(goodput or []),
        )
        what = "all at once" if concurrency is None else f"{concurrency} at a time"
        with progress_bar() as progress:
            result = asyncio.run(load_server(prompts, plan, partial(_tell, progress, what)))
        settings = {
            "num_prompts": len(prompts),
            "request_rate": "inf" if request_rate == float("inf") else request_rate,
            "burstiness": burstiness,
            "max_concurrency": concurrency,
        }
        runs.append({**settings, **result})
    if json:
        typer.echo(_as_json(runs))
        return
    for run in runs:
        typer.echo("\n".join(_lines(run)))


def _tell(progress: Progress, what: str, done: int, total: int) -> None:
    progress(done, total, what)


def _lines(run: dict[str, Any]) -> list[str]:
    """One run as text."""
    load = run["max_concurrency"] or run["num_prompts"]
    lines = [
        f"{run['completed']} requests, at most {load} at a time, in {run['duration']:.1f} s: "
        f"{run['output_throughput']:.1f} tokens/s, {run['request_throughput']:.2f} requests/s"
        + (f", {run['request_goodput']:.2f} good ones" if "request_goodput" in run else "")
    ]
    for name in ("ttft", "tpot", "itl", "e2el"):
        if f"mean_{name}_ms" in run:
            shown = ", ".join(f"{title} {run[f'{key}_{name}_ms']:.1f}" for key, title in FIGURES)
            lines.append(f"  {name.upper():4} ms: {shown}")
    if "spec_decode_acceptance_length" in run:
        lines.append(
            f"  acceptance length {run['spec_decode_acceptance_length']:.2f}, "
            f"{run['spec_decode_acceptance_rate']:.0f} % of {run['spec_decode_draft_tokens']} drafts"
        )
    if run["failed"]:
        lines.append(f"  {run['failed']} failed: {'; '.join(run['errors'])}")
    return lines


def _as_json(runs: list[dict[str, Any]]) -> str:
    from json import dumps

    from foredraft.bench.machine import describe_run

    return dumps({"meta": describe_run(), "runs": runs}, allow_nan=False)


def _concurrencies(text: str | None) -> list[int | None]:
    if text is None:
        return [None]
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--max-concurrency is {text!r}; give numbers like 1,4,16") from error


def _slos(given: list[str]) -> dict[str, float]:
    found = {}
    for text in given:
        name, _, limit = text.partition(":")
        try:
            found[name] = float(limit)
        except ValueError as error:
            raise ConfigError(f"--goodput is {text!r}; write it like ttft:200, in milliseconds") from error
    return found
