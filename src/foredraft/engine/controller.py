"""How many draft nodes to verify: who decides, and the simplest who does.

A controller decides twice a step. `budgets` limits what is drafted, as drafting itself may cost; `select` then looks at
the actual drafts, which are now free, and keeps those worth verifying. Neither can change what is emitted.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from foredraft.engine.decision import Decision
from foredraft.errors import ConfigError
from foredraft.tree import TokenTree
from foredraft.types import Sequence, StepReport

__all__ = ["Controller", "FixedController", "Load", "parse_table"]


class Load(NamedTuple):
    """What the step computes anyway: prompt rows, and the cached tokens its rows attend to."""

    prompt_rows: int
    cached: int


class Controller(Protocol):
    """Decides before and after drafting, and learns from what steps report."""

    @property
    def decision(self) -> Decision | None:
        """The last one, None where nothing is weighed."""
        ...

    def budgets(self, batch: Collection[Sequence], limits: Collection[int], load: Load) -> list[int]:
        """Most nodes to draft for each sequence, at most `limits`."""
        ...

    def select(self, batch: Collection[Sequence], tree: TokenTree, load: Load) -> TokenTree:
        """The part of the tree that is worth verifying."""
        ...

    def observe(self, report: StepReport, tree: TokenTree) -> None:
        """A step is over; `tree` is what was verified."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence is over."""
        ...


@dataclass
class FixedController:
    """Verifies whatever is drafted, up to the configured length; `table` caps it by batch size, as in vLLM.

    table  (lowest batch, highest batch, tokens), for `num_speculative_tokens_per_batch_size`
    """

    table: tuple[tuple[int, int, int], ...] = ()
    decision: Decision | None = None

    def budgets(self, batch: Collection[Sequence], limits: Collection[int], load: Load) -> list[int]:
        caps = [tokens for low, high, tokens in self.table if low <= len(batch) <= high]
        return [min(limit, *caps) if caps else limit for limit in limits]

    def select(self, batch: Collection[Sequence], tree: TokenTree, load: Load) -> TokenTree:
        # Forced tokens (structured output) come on top of the budget, but a table is the user's word.
        return tree.prune(self.budgets(batch, [tree.width] * len(batch), load)) if self.table else tree

    def observe(self, report: StepReport, tree: TokenTree) -> None:
        return None

    def forget(self, sequence: Sequence) -> None:
        return None


def parse_table(value: object) -> tuple[tuple[int, int, int], ...]:
    """vLLM's `num_speculative_tokens_per_batch_size`: [[lowest, highest, tokens], ...] or {"1-16": 3, "17-": 0}."""
    rows: list[tuple[int, int, int]] = []
    try:
        if isinstance(value, dict):
            for span, tokens in value.items():
                low, _, high = str(span).partition("-")
                rows.append((int(low), int(high or (low if "-" not in str(span) else 1 << 30)), int(tokens)))
        elif isinstance(value, list):
            rows = [(int(low), int(high), int(tokens)) for low, high, tokens in value]
        else:
            raise ValueError
        if any(low < 1 or high < low or tokens < 0 for low, high, tokens in rows):
            raise ValueError
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"num_speculative_tokens_per_batch_size is {value!r}; "
            'give [[lowest, highest, tokens], ...] or {"1-4": 8, "5-16": 2}.'
        ) from error
    return tuple(sorted(rows))
