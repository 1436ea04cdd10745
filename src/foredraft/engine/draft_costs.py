"""What drafting costs here, method by method: the engine decodes with each drafter in turn and looks at the clock.

How often drafts would be accepted in a text of one's own is another question, which only that text answers
(`foredraft bench`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import NamedTuple

from foredraft.drafters.methods import build_drafter
from foredraft.drafters.open_head import facts_of
from foredraft.engine.controller import FixedController
from foredraft.engine.engine import Engine
from foredraft.heads.shipped import shipped_head
from foredraft.target.target import Target
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, StepReport

__all__ = ["DraftCost", "drafting_configs", "measure_drafting"]

LOOKING_UP = ("ngram", "suffix", "recycling", "lookahead")
"""What drafts for any model without a file of its own."""
HEADS = ("eagle3", "eagle", "medusa")

SECONDS = 1.5
ANSWER, WARM_UP = 48, 4  # tokens
PATTERN, REPEATED = 24, 3
MOST_RUNS = 8


class DraftCost(NamedTuple):
    """Of the steps that drafted; what can't be told without one is None.

    draft_ms      median milliseconds of drafting in a step of one request
    draft_length  tokens on the longest path of a draft, on average
    draft_nodes   tokens of a draft in all, on average; more than its length for a tree
    draft_cost    time of one token of that length, in target passes of one row: the c of `foredraft plan`
    """

    method: str
    draft_ms: float | None
    draft_length: int
    draft_nodes: int
    draft_cost: float | None


def drafting_configs(target: Target, model: str | None = None) -> list[dict[str, object]]:
    """A `speculative_config` for each method that works for the target without files, for the heads that come with
    foredraft for it, and for the draft model or head `model`.
    """
    facts = facts_of(target)
    methods = [*LOOKING_UP, *(method for method in HEADS if shipped_head(method, facts) is not None)]
    configs: list[dict[str, object]] = [{"method": method} for method in methods]
    return configs if model is None else [*configs, {"model": model}]


def measure_drafting(
    target: Target,
    config: Mapping[str, object],
    *,
    pass_ms: float,
    prompts: Sequence[Sequence[int]] | None = None,
    seconds: float = SECONDS,
) -> DraftCost:
    """Decode for about `seconds` with the drafter that `config` describes; `pass_ms` is a pass of one row.

    `prompts` (token ids) should be such as the answers repeat, so that drafters which look things up find something;
    without them, runs of scattered tokens are. Raises ConfigError or LoadError if there is no such drafter or it
    doesn't fit the target.
    """
    speculation = build_drafter(config)
    assert speculation is not None, "a config of a drafter"
    watch = _Watch()
    engine = Engine(
        target,
        speculation.drafter,
        num_speculative_tokens=speculation.num_speculative_tokens,
        controller=watch,
        method=speculation.method,
    )
    texts = prompts or _scattered_runs(target.vocab_size)
    _decode(engine, texts[0], WARM_UP)  # compiles what has to be
    watch.drafts.clear()
    deadline = time.perf_counter() + seconds
    for text in texts:
        _decode(engine, text, ANSWER)
        if time.perf_counter() > deadline:
            break
    return _summary(speculation.method, watch.drafts, pass_ms)


class _Draft(NamedTuple):
    milliseconds: float
    depth: int
    nodes: int


@dataclass
class _Watch(FixedController):
    """Lets every draft pass, and notes what it took."""

    drafts: list[_Draft] = field(default_factory=list)

    def observe(self, report: StepReport, tree: TokenTree) -> None:
        if tree.width and not report.prompt_rows:
            self.drafts.append(_Draft(report.draft_seconds * 1e3, max(tree.heights), sum(report.drafted)))


def _scattered_runs(vocabulary: int) -> list[list[int]]:
    """Each said several times over."""
    runs = ([(7919 * place + 104729 * number) % vocabulary for place in range(PATTERN)] for number in range(MOST_RUNS))
    return [run * REPEATED for run in runs]


def _decode(engine: Engine, text: Sequence[int], tokens: int) -> None:
    """Greedily, as much of the text as there is room for."""
    prompt = list(text[: max(1, engine.max_length - tokens)])
    length = min(tokens, engine.max_length - len(prompt))
    engine.add(prompt, SamplingParams(temperature=0, max_tokens=length, ignore_eos=True))
    while not engine.idle:
        engine.step()


def _summary(method: str, drafts: Sequence[_Draft], pass_ms: float) -> DraftCost:
    if not drafts:
        return DraftCost(method, None, 0, 0, None)
    milliseconds = median(draft.milliseconds for draft in drafts)
    depth = mean(draft.depth for draft in drafts)
    nodes = mean(draft.nodes for draft in drafts)
    return DraftCost(method, milliseconds, round(depth), round(nodes), milliseconds / depth / pass_ms)
