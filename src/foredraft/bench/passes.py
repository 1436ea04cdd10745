"""Times target passes, their products, and the picking of tokens, over row counts.

All row counts take turns, so that a change of the machine's speed meets all of them. A pass is what verification runs:
the layers over `rows` new rows, chains spread evenly over `batch` sequences that have `cached` tokens each, and the
head for every row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from foredraft.bench.micro_cells import PassCell, PrefillCell, SamplingCell
from foredraft.bench.products import products_of
from foredraft.errors import ConfigError
from foredraft.sampling import pick, rows_of
from foredraft.target.decoder import Decoder
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache
from foredraft.target.target import Target
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams
from foredraft.types import Sequence as TokenSequence

__all__ = ["measure_passes", "measure_prefill", "measure_sampling"]

WARM_UPS = 2
FIRST_TOKEN = 10  # tokens of a measured pass are FIRST_TOKEN, FIRST_TOKEN + 1, ...


def measure_passes(
    target: Target,
    row_counts: Sequence[int],
    contexts: Sequence[int],
    *,
    batch: int = 1,
    repeat: int = 15,
    products: bool = True,
) -> list[PassCell]:
    """Median pass for each context and row count, and that of its products alone; `contexts` are cached tokens per
    sequence.

    Raises ConfigError where the rows don't fit the batch or the model's context.
    """
    if min(row_counts) < batch:
        raise ConfigError(f"rows {min(row_counts)} is below batch {batch}; each sequence has at least one row.")
    cells = []
    for context in contexts:
        _check_room(target, context + -(-max(row_counts) // batch))
        cache = _filled_cache(target, context + max(row_counts), batch)
        passes = {rows: _pass(target.decoder, cache, rows, context, batch) for rows in row_counts}
        parts = {rows: products_of(target.decoder, rows, run) if products else None for rows, run in passes.items()}
        pass_times = {rows: [] for rows in row_counts}  # type: dict[int, list[float]]
        product_times = {rows: [] for rows in row_counts}  # type: dict[int, list[float]]
        for turn in range(WARM_UPS + repeat):
            for rows in row_counts:
                times = [(pass_times, passes[rows]), (product_times, parts[rows])]
                for found, run in times if turn % 2 else reversed(times):
                    if run is not None:
                        found[rows].append(milliseconds(run))
        one = median(pass_times[row_counts[0]][WARM_UPS:])
        for rows in row_counts:
            middle = median(pass_times[rows][WARM_UPS:])
            alone = median(product_times[rows][WARM_UPS:]) if product_times[rows] else None
            cells.append(
                PassCell(
                    rows=rows,
                    cached=context * batch,
                    batch=batch,
                    pass_ms=middle,
                    products_ms=alone,
                    over_products=middle / alone if alone else None,
                    over_fewest_rows=middle / one,
                    fastest_ms=min(pass_times[rows][WARM_UPS:]),
                )
            )
    return cells


def measure_prefill(target: Target, length: int, *, repeat: int = 5) -> PrefillCell:
    """Time to read a prompt of `length` tokens in one pass and compute the logits of its last row."""
    _check_room(target, length)
    cache = _filled_cache(target, length, 1)
    flat = _flat(target.decoder, length, 0, 1)

    @torch.inference_mode()
    def run() -> Tensor:
        return target.decoder.head(target.decoder.forward(flat, cache).last[-1:])

    times = [milliseconds(run) for _ in range(WARM_UPS + repeat)][WARM_UPS:]
    return PrefillCell(rows=length, prefill_ms=median(times), fastest_ms=min(times))


def measure_sampling(
    target: Target, row_counts: Sequence[int], passes: Sequence[PassCell], *, repeat: int = 15
) -> list[SamplingCell]:
    """Time of picking a token for every row of one sequence, on the logits of a real pass.

    passes  measured before; the share of the pass is given where one has the same row count
    """
    context = min(64, target.max_model_len - max(row_counts) - 1)
    _check_room(target, max(context, 1) + max(row_counts))
    cache = _filled_cache(target, context + max(row_counts), 1)
    known = {cell.rows: cell.pass_ms for cell in reversed(passes)}
    cells = []
    for name, params in (
        ("greedy", SamplingParams(temperature=0)),
        ("temperature 1", SamplingParams(temperature=1)),
        ("temperature 1, top-p 0.95", SamplingParams(temperature=1, top_p=0.95)),
    ):
        for rows in row_counts:
            logits = _pass(target.decoder, cache, rows, context, 1)()
            tokens = list(range(FIRST_TOKEN, FIRST_TOKEN + context))
            sequence = TokenSequence(0, params, tokens, context, seed=1)
            tree = TokenTree.chain([[FIRST_TOKEN + row for row in range(1, rows)]])
            run = _picking(logits, sequence, tree, target.eos_token_ids)
            spent = median([milliseconds(run) for _ in range(WARM_UPS + repeat)][WARM_UPS:])
            share = spent / known[rows] if rows in known else None
            cells.append(SamplingCell(params=name, rows=rows, sampling_ms=spent, share_of_pass=share))
    return cells


def milliseconds(run: Callable[[], object]) -> float:
    """Time of one call, waiting for the device."""
    began = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def _picking(logits: Tensor, sequence: TokenSequence, tree: TokenTree, eos: tuple[int, ...]) -> Callable[[], Tensor]:
    @torch.inference_mode()
    def run() -> Tensor:
        return pick(logits, rows_of([sequence], tree, eos))

    return run


def _pass(decoder: Decoder, cache: KVCache, rows: int, context: int, batch: int) -> Callable[[], Tensor]:
    flat = _flat(decoder, rows, context, batch)

    @torch.inference_mode()
    def run() -> Tensor:
        return decoder.head(decoder.forward(flat, cache).last)

    return run


def _flat(decoder: Decoder, rows: int, context: int, batch: int) -> FlatPass:
    segments: list[Segment] = []
    positions: list[int] = []
    for index in range(batch):
        own = rows // batch + (index < rows % batch)
        root, nodes = (own, ()) if not context else (1, tuple(range(own - 1)))
        segments.append(Segment(index, context, len(positions), root, nodes))
        positions += range(context, context + own)
    tokens = (torch.arange(rows) + FIRST_TOKEN) % decoder.vocab_size
    return FlatPass(tokens.to(decoder.device), torch.tensor(positions, device=decoder.device), tuple(segments))


def _filled_cache(target: Target, length: int, batch: int) -> KVCache:
    """A scratch cache with something in every entry: memory that was never written reads unrealistically fast."""
    cache = KVCache(target.cache.shape, batch, target.cache.dtype, target.cache.device)
    cache.reserve(length)
    for buffer in [*cache.keys, *cache.values]:
        buffer.normal_()
    return cache


def _check_room(target: Target, length: int) -> None:
    if length > target.max_model_len:
        raise ConfigError(
            f"{length} tokens are more than the {target.max_model_len} that {target.name} can hold; lower --rows, "
            "--cached or --prefill."
        )
