"""What a target pass costs here: measured, not assumed.

A pass is timed over rows, cached tokens and batch size on a scratch cache, which takes a few seconds; the result is
kept per device, model, format and way through it, so it is measured once. `PassCosts` then follows the passes of real
steps: machines throttle, neighbours come and go.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import geometric_mean, median

import torch

from foredraft.economics import MeasuredPasses, PassPoint
from foredraft.errors import ConfigError
from foredraft.target.decoder import Decoder
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache
from foredraft.target.load_cache import note_path, read_object, write_note
from foredraft.target.machine import device_name
from foredraft.target.provenance import provenance

__all__ = [
    "PassCosts",
    "load_profile",
    "machine_name",
    "measure_passes",
    "profile_path",
    "save_profile",
    "still_holds",
]

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
CONTEXTS = (64, 1024)
BATCHES = (1, 4, 16)
TURNS = 3
SECONDS = 6.0

CHECKED_ROWS = (1, 4, 8)
CHECK_MS = 100.0
"""A pass of one row that takes longer isn't repeated just to check a profile."""
DRIFT = 1.4

FOLLOW, LEAP = 0.1, 0.3
OUTLIER, SURPRISE = 2.0, 0.15
STALE = 64
"""Steps after which a pass without drafts, or with some, is worth a look, where the other sort is made all the time."""


def measure_passes(decoder: Decoder, *, max_length: int, seconds: float = SECONDS) -> list[PassPoint]:
    """Time passes over rows x cached tokens x batch, all row counts in turns, and take medians.

    Rows of a batch are spread evenly over its sequences. Takes about `seconds`, which all combinations share, but times
    every row count at least once, and leaves out combinations where the time is over.
    """
    contexts = [context for context in CONTEXTS if context + max(ROWS) < max_length] or [max_length // 2]
    points: list[PassPoint] = []
    began, parts = time.perf_counter(), len(BATCHES) * len(contexts)
    for index, batch in enumerate(BATCHES):
        cache = _scratch(decoder, batch, max(contexts) + max(ROWS))
        for part, context in enumerate(contexts, start=index * len(contexts) + 1):
            flats = [_flat(rows, context, batch, decoder) for rows in ROWS if rows >= batch]
            times = _undisturbed(_in_turns(decoder, flats, cache, began + seconds * part / parts))
            points += [
                PassPoint(flat.rows, batch * context, batch, milliseconds)
                for flat, milliseconds in zip(flats, times, strict=True)
            ]
            if time.perf_counter() > began + seconds:
                return points
    return points


def still_holds(table: MeasuredPasses, decoder: Decoder, *, max_length: int) -> bool:
    """Whether more rows still cost what the table says, beside one row; takes a fifth of a second.

    Measured while the machine was busy, a table may say that drafts never pay. As none would be verified then, steps
    could not teach otherwise.
    """
    context = min(CONTEXTS[0], max_length // 2)
    cache = _scratch(decoder, 1, context + max(CHECKED_ROWS))
    flats = [_flat(rows, context, 1, decoder) for rows in CHECKED_ROWS]
    if _timed(decoder, flats[0], cache) > CHECK_MS:
        return True
    one, *more = _in_turns(decoder, flats, cache, math.inf)
    changes = [
        milliseconds / one / (table(rows, context, 1) / table(1, context, 1))
        for rows, milliseconds in zip(CHECKED_ROWS[1:], more, strict=True)
    ]
    return 1 / DRIFT < geometric_mean(changes) < DRIFT


@dataclass
class PassCosts:
    """Milliseconds of a pass: a measured table, corrected by what steps really take.

    What drafts add to a pass must be right, not only the whole. So there are two corrections, one for passes without
    drafts, the other for those with as many as usual, and in between a mixture. Either moves a little with each pass of
    its own sort, further if the last is long ago. (Were both moved by a pass that is in between, the one without drafts
    would be extrapolated wherever all steps have some.) A pass that took several times what was expected, as the
    machine was busy with something else, counts no more than a slow one.

    A correction is stale when its sort wasn't seen for 64 passes, and remains so while what is seen surprises.
    """

    table: MeasuredPasses
    plain: float = 1.0
    drafted: float = 1.0
    usual: float = 8.0
    """Draft rows of a pass with drafts."""
    since_plain: int = 0
    since_drafted: int = 0
    """Passes since the last one of that sort that was as expected."""
    _known: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def __call__(self, rows: int, cached: int, batch: int) -> float:
        share = min(1.0, (rows - batch) / self.usual)
        return (self.plain + share * (self.drafted - self.plain)) * self._tabled(rows, cached, batch)

    @property
    def plain_is_stale(self) -> bool:
        return self.since_plain >= STALE

    @property
    def drafted_is_stale(self) -> bool:
        return self.since_drafted >= STALE

    def observe(self, rows: int, cached: int, batch: int, milliseconds: float) -> None:
        """A pass of a real step took that long."""
        expected = self(rows, cached, batch)
        ratio = min(max(milliseconds / expected, 1 / OUTLIER), OUTLIER)
        surprise = abs(ratio - 1) > SURPRISE
        change = (ratio - 1) * expected / self._tabled(rows, cached, batch)
        if rows == batch:
            self.plain += min(LEAP, FOLLOW * (1 + self.since_plain)) * change
            self.since_plain = self.since_plain if surprise else 0
            self.since_drafted += 1
        else:
            self.usual += FOLLOW * (rows - batch - self.usual)
            share = min(1.0, (rows - batch) / self.usual)
            self.drafted += min(LEAP, FOLLOW * (1 + self.since_drafted)) * share * change
            self.since_drafted = self.since_drafted if surprise else 0
            self.since_plain += 1

    def _tabled(self, rows: int, cached: int, batch: int) -> float:
        """The table's value, looked up once for each stretch of 128 cached tokens."""
        key = (rows, cached >> 7, batch)
        if key not in self._known:
            if len(self._known) > 20_000:
                self._known.clear()
            self._known[key] = self.table(rows, cached, batch)
        return self._known[key]


def machine_name(device: torch.device) -> str:
    """What a profile is valid for, besides the model: device, threads, torch version."""
    return f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def profile_path(fingerprint: str, decoder: Decoder) -> Path:
    """Where the profile of a model is kept that runs in this format and this way on this machine."""
    way = (decoder.weight_format, decoder.way_name, provenance())
    return note_path("profiles", repr((machine_name(decoder.device), fingerprint, way)))


def save_profile(path: Path, points: Iterable[PassPoint], machine: str) -> None:
    """Keep a profile for later starts."""
    cells = [
        {"kind": "pass", "rows": rows, "cached": cached, "batch": batch, "pass_ms": milliseconds}
        for rows, cached, batch, milliseconds in points
    ]
    write_note(path, {"meta": {"machine": machine}, "cells": cells})


def load_profile(path: Path) -> MeasuredPasses | None:
    """A profile measured earlier, None if there is none or it can't be read."""
    content = read_object(path)
    try:
        return MeasuredPasses.from_cells(content["cells"])
    except (ValueError, KeyError, TypeError, ConfigError):
        return None


def _scratch(decoder: Decoder, slots: int, length: int) -> KVCache:
    cache = KVCache(decoder.cache_shape, slots, decoder.cache_dtype, decoder.device)
    cache.reserve(length)
    for plane in cache.planes:  # memory that was never written reads unrealistically fast
        plane.zero_()
    return cache


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


def _in_turns(decoder: Decoder, flats: list[FlatPass], cache: KVCache, deadline: float) -> list[float]:
    """Median milliseconds of each pass; what is left of the time limits the turns, not what warms up before them."""
    for flat in (flats[-1], flats[0]):  # the widest gets its buffers, then the cache is as it will be
        _timed(decoder, flat, cache)
    turns: list[list[float]] = []
    while len(turns) < TURNS and not (turns and time.perf_counter() > deadline):
        turns.append([_timed(decoder, flat, cache) for flat in flats])
    return [median(times) for times in zip(*turns, strict=True)]


def _undisturbed(times: list[float]) -> list[float]:
    """Of rising row counts: a pass takes no longer than one of more rows, unless something disturbed it."""
    return list(accumulate(reversed(times), min))[::-1]


def _timed(decoder: Decoder, flat: FlatPass, cache: KVCache) -> float:
    began = time.perf_counter()
    logits = decoder.head(decoder.forward(flat, cache).last)
    if logits.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3
