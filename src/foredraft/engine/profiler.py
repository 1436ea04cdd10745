"""What a target pass costs here: measured, not assumed.

A pass is timed over rows, cached tokens and batch size on a scratch cache, which takes a few seconds; the result is
kept per machine, model, format and version, so it is measured once. `PassCosts` then follows the passes of real steps:
machines throttle, neighbours come and go.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from foredraft.economics import MeasuredPasses, PassPoint
from foredraft.errors import ConfigError
from foredraft.target.decoder import Decoder
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache
from foredraft.target.load_cache import cache_root

__all__ = ["PassCosts", "load_profile", "machine_name", "measure_passes", "profile_path", "save_profile"]

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
CONTEXTS = (64, 1024)
BATCHES = (1, 4, 16)
REPEATS = 3
SECONDS = 6.0

FOLLOW = 0.1
OUTLIER = 3.0


def measure_passes(decoder: Decoder, *, max_length: int, seconds: float = SECONDS) -> list[PassPoint]:
    """Time passes over rows x cached tokens x batch; the median of three each, longer series first where time is short.

    Rows of a batch are spread evenly over its sequences. Stops after about `seconds`, with what it has.
    """
    contexts = [context for context in CONTEXTS if context + max(ROWS) < max_length] or [max_length // 2]
    points: list[PassPoint] = []
    deadline = time.perf_counter() + seconds
    for batch in BATCHES:
        cache = KVCache(decoder.cache_shape, batch, decoder.cache_dtype, decoder.device)
        cache.reserve(max(contexts) + max(ROWS))
        for plane in cache.planes:  # memory that was never written reads unrealistically fast
            plane.zero_()
        for context in contexts:
            for rows in (rows for rows in ROWS if rows >= batch):
                if time.perf_counter() > deadline and len(points) > len(ROWS):
                    return points
                flat = _flat(rows, context, batch, decoder)
                times = [_timed(decoder, flat, cache) for _ in range(REPEATS)]
                points.append(PassPoint(rows, batch * context, batch, median(times)))
    return points


@dataclass
class PassCosts:
    """Milliseconds of a pass: a measured table, corrected by what steps really take.

    The correction is one factor for narrow and one for wide passes, moved a little by each step; a step that took
    several times what was expected (the machine was busy with something else) counts no more than a slow one.
    """

    table: MeasuredPasses
    narrow: float = 1.0
    wide: float = 1.0
    _known: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def __call__(self, rows: int, cached: int, batch: int) -> float:
        factor = self.narrow if rows <= 2 * batch else self.wide
        return factor * self._tabled(rows, cached, batch)

    def observe(self, rows: int, cached: int, batch: int, milliseconds: float) -> None:
        """A pass of a real step took that long."""
        ratio = milliseconds / self._tabled(rows, cached, batch)
        if rows <= 2 * batch:
            self.narrow += FOLLOW * (_clipped(ratio, self.narrow) - self.narrow)
        else:
            self.wide += FOLLOW * (_clipped(ratio, self.wide) - self.wide)

    def _tabled(self, rows: int, cached: int, batch: int) -> float:
        """The table's value, looked up once for each stretch of 128 cached tokens."""
        key = (rows, cached >> 7, batch)
        if key not in self._known:
            if len(self._known) > 20_000:
                self._known.clear()
            self._known[key] = self.table(rows, cached, batch)
        return self._known[key]


def machine_name() -> str:
    """What a profile is valid for, besides the model: processor, threads, torch version, device."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else _processor()
    return f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def profile_path(fingerprint: str, weight_format: str) -> Path:
    """Where the profile of a model in a format on this machine is kept."""
    key = hashlib.sha256(f"{machine_name()} {fingerprint} {weight_format}".encode()).hexdigest()[:24]
    return cache_root() / "profiles" / f"{key}.json"


def save_profile(path: Path, points: Iterable[PassPoint]) -> None:
    """Write a profile; a cache that can't be written only costs time."""
    cells = [
        {"kind": "pass", "rows": rows, "cached": cached, "batch": batch, "pass_ms": milliseconds}
        for rows, cached, batch, milliseconds in points
    ]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"meta": {"machine": machine_name()}, "cells": cells}))
        unfinished.replace(path)


def load_profile(path: Path) -> MeasuredPasses | None:
    """A profile measured earlier on this machine, None if there is none or it can't be read."""
    try:
        content = json.loads(path.read_text())
        if content["meta"]["machine"] != machine_name():
            return None
        return MeasuredPasses.from_cells(content["cells"])
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        return None


def _flat(rows: int, context: int, batch: int, decoder: Decoder) -> FlatPass:
    segments: list[Segment] = []
    positions: list[int] = []
    first = 0
    for index in range(batch):
        own = rows // batch + (index < rows % batch)
        segments.append(Segment(index, context, first, own))
        positions += range(context, context + own)
        first += own
    tokens = torch.arange(rows, device=decoder.device) % decoder.vocab_size
    return FlatPass(tokens, torch.tensor(positions, device=decoder.device), tuple(segments))


def _timed(decoder: Decoder, flat: FlatPass, cache: KVCache) -> float:
    began = time.perf_counter()
    logits = decoder.head(decoder.forward(flat, cache).last)
    if logits.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def _clipped(ratio: float, usual: float) -> float:
    return min(max(ratio, usual / OUTLIER), usual * OUTLIER)


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
