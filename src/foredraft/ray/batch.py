"""`foredraft batch --ray`: a file of requests, answered by engines on a cluster through Ray Data.

The requests that have no answer yet become a data set, whose blocks go to a pool of actors with an engine each. Blocks
come back in the order of the requests, and are written as they come: whatever ends a batch, running it again goes on
after the last line that was written.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from foredraft.errors import ForedraftError, LoadError
from foredraft.ray.arguments import Described
from foredraft.ray.cluster import connected
from foredraft.server.batch_file import AnswerFile, BatchLine, remaining_lines
from foredraft.server.model_spec import ModelSpec
from foredraft.server.settings import ServerSettings

__all__ = ["BatchEngine", "ray_batch"]

LINES_PER_SLOT = 4
"""In a block: enough to keep the slots busy, few enough to lose little with an actor that dies."""
CALLS = 2
"""Blocks that an actor works on at a time, so that the next one fills the slots which the last lines of one leave."""
ATTEMPTS = 3

Columns = dict[str, Any]


def ray_batch(
    described: Described, source: Path, answers: AnswerFile, *, progress: Callable[[int], None] = lambda done: None
) -> None:
    """Answer the lines of `source` that have no answer yet, on the cluster that RAY_ADDRESS names or on this machine.

    progress  gets the number of lines done, those of earlier runs included

    Raises ConfigError if the answers belong to other requests, LoadError if the cluster or the model fails.
    """
    done = len(answers.custom_ids)
    lines = list(remaining_lines(source, answers.custom_ids))
    with connected("data"):
        progress(done)
        for results in _answered(described, lines):
            answers.append(results)
            done += len(results)
            progress(done)


class BatchEngine:
    """An actor of the pool. Raises RuntimeError, which every Python can unpickle, if the model can't be loaded."""

    def __init__(self, spec: ModelSpec, settings: ServerSettings) -> None:
        from foredraft.server.app import create_app, create_service

        service = create_service(spec.load, settings, method=spec.method)
        self._app = create_app(service)
        self._slots = spec.args.max_num_seqs
        service.worker.start()
        try:
            service.worker.wait_until_settled()
        except ForedraftError as error:
            raise RuntimeError(str(error)) from None

    def __call__(self, block: Columns) -> Columns:
        """Requests as JSON -> results as JSON, in their order."""
        lines = [BatchLine(*json.loads(text)) for text in block["line"]]
        results = asyncio.run(self._answer(lines))
        return {"number": [line.number for line in lines], "result": [json.dumps(result) for result in results]}

    async def _answer(self, lines: Collection[BatchLine]) -> list[dict[str, Any]]:
        from foredraft.server.batch import answer_in_order, ask

        found: list[dict[str, Any]] = []
        async for results in answer_in_order(lines, partial(ask, self._app), concurrency=self._slots):
            found += results
        return found


def _answered(described: Described, lines: list[BatchLine]) -> Iterator[list[dict[str, Any]]]:
    """The results of all lines, in their order, as blocks of them get ready."""
    from ray.exceptions import RayError

    expected = iter(lines)
    try:
        for block in _pool(described, lines).iter_batches(batch_size=None, prefetch_batches=0):
            numbers = [int(number) for number in block["number"]]
            if numbers != [next(expected).number for _ in numbers]:
                raise RuntimeError("the results came in another order than the requests")
            yield [json.loads(text) for text in block["result"]]
    except (RayError, RuntimeError) as error:
        raise LoadError(f"The batch could not go on ({_cause(error)}); run it again to go on.") from error


def _pool(described: Described, lines: list[BatchLine]) -> Any:
    """The data set of all results."""
    import ray

    spec, settings, replicas = described
    least, most = replicas.autoscale or (replicas.replicas, replicas.replicas)
    size = LINES_PER_SLOT * spec.args.max_num_seqs
    rows = [{"line": json.dumps(line)} for line in lines]
    requests = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // size))
    context = requests.context
    context.execution_options.preserve_order = True
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    return requests.map_batches(
        BatchEngine,
        fn_constructor_args=(spec, settings),
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(
            min_size=least, max_size=most, max_concurrent_calls_per_actor=CALLS, enable_true_multi_threading=True
        ),
        num_cpus=replicas.num_cpus,
        num_gpus=replicas.num_gpus,
        ray_remote_args_fn=_attempts,
    )


def _attempts() -> dict[str, int]:
    """Ray would give a block to one engine after the other for ever, even one that ends them all."""
    return {"max_task_retries": ATTEMPTS - 1}


def _cause(error: BaseException) -> str:
    """The last line of what Ray tells, which is what our own code raised, if it did."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].removeprefix("RuntimeError: ").rstrip(".")
