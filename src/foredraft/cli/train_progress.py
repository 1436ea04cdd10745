"""How training commands show where they are: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foredraft.cli.terminal import say

__all__ = ["Show", "duration", "shown_progress"]

LINE_EVERY = 30.0

Show = Callable[[float, float, str], None]
"""show(done, total, what): what is a few words with the figures of the moment."""


@contextmanager
def shown_progress(title: str) -> Iterator[Show]:
    """Around a long piece of work."""
    if sys.stderr.isatty():
        yield from _bar(title)
    else:
        yield from _lines(title)


def _bar(title: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(title), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(elapsed_when_finished=True))
    with Bar(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total or None, description=what)


def _lines(title: str) -> Iterator[Show]:
    began = last = time.monotonic()
    first: float | None = None

    def show(done: float, total: float, what: str) -> None:
        nonlocal last, first
        now = time.monotonic()
        if first is None:
            first = done
        if now - last >= LINE_EVERY or done >= total:
            last = now
            share = min(done / max(total, 1e-9), 1.0)
            left = f" · {duration((total - done) * (now - began) / (done - first))} left" if done > first else ""
            say(f"{title} {share:.1%} · {what}{left}")

    yield show


def duration(seconds: float) -> str:
    """ "3 h 20 min", "12 min" or "40 s"."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 60)} min" if seconds >= 60 else f"{max(int(seconds), 0)} s"
