"""Compares methods with plain decoding, prompt by prompt, in one process on one loaded model.

The machine is never the same for long, so plain decoding and every method take turns on each block of prompts, and the
order turns round from one block to the next. Engines share the target, never the contents of its cache. Drafters are
built anew for every cell and repeat, so that what one remembers across requests comes from the other prompts of the
same run of the same cell, never from the same prompt. A block is one prompt at concurrency 1; above, it has BLOCK_WAVES
prompts for each request in flight.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from foredraft.bench.cells import BlockPair, OfflineCell, offline_cell, overall_cell
from foredraft.bench.decode import BlockRun, decode_block
from foredraft.bench.differences import Difference, first_difference, top_two_gap
from foredraft.bench.workloads import EncodedPrompt
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.target.target import Target
from foredraft.types import SamplingParams

__all__ = ["OFF", "Decode", "Method", "Plan", "Progress", "measure_offline"]

BLOCK_WAVES = 4
WARM_UP_TOKENS = 16
WARM_UP_LOOP = 8  # the warm-up prompt repeats itself, so that lookups find something


@dataclass(frozen=True, slots=True)
class Method:
    """A way of decoding. `config` is a speculative config, None for plain; `predicts` lets it see predictions."""

    name: str
    config: Mapping[str, object] | None = None
    predicts: bool = False


OFF = Method("off")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: every combination, each block `repeat` times. Raises ConfigError for what makes no sense."""

    methods: Sequence[Method]
    temperatures: Sequence[float] = (0.0,)
    concurrencies: Sequence[int] = (1,)
    max_tokens: int = 128
    repeat: int = 1

    def __post_init__(self) -> None:
        if not self.methods:
            raise ConfigError("There is no method to measure; name one, such as ngram.")
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature, max_tokens=self.max_tokens)
        for name, values in (("concurrency", self.concurrencies), ("repeat", [self.repeat])):
            wrong = next((value for value in values if value < 1), None)
            if wrong is not None:
                raise ConfigError(f"{name} is {wrong}; give at least 1.")
        names = [method.name for method in self.methods]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"method {twice!r} is asked for twice; leave one out.")


Decode = Callable[[Sequence[EncodedPrompt], SamplingParams, int], BlockRun]
"""Decodes a block of prompts, so many at a time."""

Progress = Callable[[int, int, str], None]
"""Called with prompts done, prompts in all, and what is being measured."""


def measure_offline(
    target: Target,
    open_engine: Callable[[Method], Engine],
    prompts: Sequence[EncodedPrompt],
    plan: Plan,
    *,
    references: Mapping[str, Decode] = MappingProxyType({}),
    progress: Progress = lambda done, total, what: None,
) -> list[OfflineCell]:
    """One cell per temperature, concurrency, method and workload, and an overall one where there are several workloads.

    open_engine  builds a method's engine over `target`, with a drafter of its own
    references   other engines by name, which take their turn, too; their tokens aren't compared
    """
    names = [*(method.name for method in plan.methods), *references]
    workloads: dict[str, list[EncodedPrompt]] = {}
    for prompt in prompts:
        workloads.setdefault(prompt.workload, []).append(prompt)
    settings = list(itertools.product(plan.temperatures, plan.concurrencies))
    total, done = len(settings) * len(prompts) * plan.repeat, 0
    cells: list[OfflineCell] = []
    for temperature, concurrency in settings:
        params = SamplingParams(temperature=temperature, max_tokens=plan.max_tokens)
        found: dict[str, list[tuple[OfflineCell, list[BlockPair]]]] = {name: [] for name in names}
        for workload, members in workloads.items():
            blocks = _blocks(members, concurrency)
            pairs = {name: [BlockPair(compared=name not in references) for _ in blocks] for name in names}
            for repeat in range(plan.repeat):
                arms = {**_open(open_engine, plan.methods), **references}
                for number, block in enumerate(blocks):
                    progress(done, total, f"{workload}, temperature {temperature:g}, {concurrency} at a time")
                    runs = _take_turns(arms, block, params, concurrency, turned=(number + repeat) % 2 == 1)
                    for name, parts in pairs.items():
                        _record(parts[number], runs[OFF.name], runs[name], block, target, params)
                    done += len(block)
            inputs = sum(len(prompt.tokens) for prompt in members)
            for name, parts in pairs.items():
                cell = offline_cell(
                    parts,
                    method=name,
                    workload=workload,
                    concurrency=concurrency,
                    temperature=temperature,
                    input_tokens=inputs,
                )
                found[name].append((cell, parts))
        for group in found.values():
            cells += [cell for cell, _ in group]
            if len(group) > 1:
                cells.append(overall_cell([cell for cell, _ in group], [pair for _, part in group for pair in part]))
    progress(total, total, "done")
    return cells


def _blocks(prompts: Sequence[EncodedPrompt], concurrency: int) -> list[Sequence[EncodedPrompt]]:
    size = 1 if concurrency == 1 else concurrency * BLOCK_WAVES
    return [prompts[first : first + size] for first in range(0, len(prompts), size)]


def _open(open_engine: Callable[[Method], Engine], methods: Sequence[Method]) -> dict[str, Decode]:
    """An engine for plain decoding, then one for each method, each having decoded a few tokens already."""
    gc.collect()  # engines and drafters of the previous cell
    arms = [OFF, *(method for method in methods if method.name != OFF.name)]
    engines = [(method, open_engine(method)) for method in arms]
    for _, engine in engines:
        tokens = [token % engine.target.vocab_size for token in range(3, 3 + WARM_UP_LOOP)] * 3
        warm_up = EncodedPrompt(tuple(tokens), "warm-up", "warm-up")
        decode_block(engine, [warm_up], SamplingParams(temperature=0, max_tokens=WARM_UP_TOKENS, ignore_eos=True))
    return {method.name: partial(decode_block, engine, predict=method.predicts) for method, engine in engines}


def _take_turns(
    arms: dict[str, Decode],
    block: Sequence[EncodedPrompt],
    params: SamplingParams,
    concurrency: int,
    *,
    turned: bool,
) -> dict[str, BlockRun]:
    """Decode the block once by each, plain first or, when turned, last."""
    names = reversed(arms) if turned else iter(arms)
    return {name: arms[name](block, params, concurrency) for name in names}


def _record(
    pair: BlockPair,
    plain: BlockRun,
    run: BlockRun,
    block: Sequence[EncodedPrompt],
    target: Target,
    params: SamplingParams,
) -> None:
    pair.plain.append(plain)
    pair.method.append(run)
    if not pair.compared:
        return
    for prompt, one, two in zip(block, plain.answers, run.answers, strict=True):
        position = first_difference(one.tokens, two.tokens)
        if position is None or any(known.source == prompt.source for known in pair.differences):
            continue
        same = one.tokens[:position]
        gap = top_two_gap(target, prompt.tokens, same, replace(params, seed=prompt.seed))
        ids = [answer.tokens[position] if position < len(answer.tokens) else -1 for answer in (one, two)]
        pair.differences.append(Difference(prompt.source, position, ids[0], ids[1], gap))
