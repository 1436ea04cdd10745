"""Answers a file of requests: every line goes the way of an HTTP request, so it gets the same body.

Many lines are decoded at a time. Answers are written in the order of the requests, so those that are done early wait
for the ones before them; how many may wait is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from foredraft.server.app import create_app
from foredraft.server.batch_file import AnswerFile, BatchLine, answered, refused, remaining_lines
from foredraft.server.in_process import post
from foredraft.server.service import Service

__all__ = ["answer_in_order", "ask", "local_batch"]

Answer = Callable[[BatchLine], Awaitable[dict[str, Any]]]


def local_batch(
    service: Service,
    source: Path,
    answers: AnswerFile,
    *,
    concurrency: int,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Answer the lines of `source` that have no answer yet with the service's model.

    concurrency  requests that are decoded or wait in the engine's queue at a time
    progress     gets the number of lines done, those of earlier runs included

    Raises ConfigError if the answers belong to other requests, and what loading the model failed with.
    """
    resumed = len(answers.custom_ids)
    lines = remaining_lines(source, answers.custom_ids)
    asyncio.run(_run(service, lines, answers, concurrency, lambda count: progress(resumed + count)))


async def ask(app: ASGIApp, line: BatchLine) -> dict[str, Any]:
    """The result of one line, by the way of an HTTP request."""
    return answered(line, *await post(app, line.url, line.body))


async def answer_in_order(
    lines: Iterable[BatchLine], answer: Answer, *, concurrency: int
) -> AsyncIterator[list[dict[str, Any]]]:
    """The results of all lines, in their order, in groups as they get ready.

    At most `concurrency` lines are being answered; at most three times as many answers wait for an earlier one.
    """
    room = asyncio.Semaphore(concurrency)

    async def one(line: BatchLine) -> dict[str, Any]:
        async with room:
            return refused(line) if line.problem is not None else await answer(line)

    rest = iter(lines)
    window: deque[asyncio.Task[dict[str, Any]]] = deque()
    try:
        while True:
            window += (asyncio.create_task(one(line)) for line in islice(rest, 4 * concurrency - len(window)))
            if not window:
                return
            await window[0]
            ready = []
            while window and window[0].done():
                ready.append(window.popleft().result())
            yield ready
    finally:
        for task in window:
            task.cancel()
        await asyncio.gather(*window, return_exceptions=True)


async def _run(
    service: Service,
    lines: Iterator[BatchLine],
    answers: AnswerFile,
    concurrency: int,
    progress: Callable[[int], None],
) -> None:
    app = create_app(service)
    done = 0
    async with app.router.lifespan_context(app):
        await asyncio.to_thread(service.worker.wait_until_settled)
        progress(done)
        async for results in answer_in_order(lines, partial(ask, app), concurrency=concurrency):
            answers.append(results)
            done += len(results)
            progress(done)
