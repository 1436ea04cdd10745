"""The drafter protocol: what proposes tokens, whatever is behind it.

A drafter sees committed tokens and answers with a `TokenTree`. It can't change what is emitted, only how fast: a wrong,
lazy or silent drafter costs time and nothing else. `BaseDrafter` supplies everything but `propose`. A drafter class is
a dataclass whose fields are its configuration, the keys of `speculative_config`.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from torch import Tensor

from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["BaseDrafter", "Drafter", "Features", "Wants"]


class Wants(NamedTuple):
    """What a drafter needs from the target, besides the committed tokens.

    layers      boundaries of the residual stream to tap: k is the input of layer k, -1 the state after the final norm
    candidates  how many of the target's most likely tokens to report for every verified row
    """

    layers: tuple[int, ...] = ()
    candidates: int = 0


class Features(NamedTuple):
    """What the target computed in a step. B rows, N draft nodes, T tokens newly committed to the KV cache.

    tree        the tree that was verified
    picks       [B, N + 1] int64, the target's pick at the root and at every node, accepted or not
    candidates  [B, N + 1, k] int64, the raw logits' best tokens there, best first; None unless wanted
    hidden      [T, L, H], the tapped layers in the order of `Wants.layers`; None unless wanted
    sequences   whose rows `hidden` holds, prompt chunks included: `counts[i]` consecutive rows belong to `sequences[i]`
    starts      and are its tokens from position `starts[i]` on
    """

    tree: TokenTree
    picks: Tensor
    candidates: Tensor | None = None
    hidden: Tensor | None = None
    sequences: tuple[Sequence, ...] = ()
    starts: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


class Drafter(Protocol):
    """Proposes draft tokens. Calls come in the order bind, (begin, (propose, commit)*, end)* per sequence, from one
    thread.

    A `begin` that raises must leave nothing of the sequence behind: no `end` follows it. After a `propose` or `commit`
    that raised, its sequences are ended, and perhaps begun anew.
    """

    @property
    def wants(self) -> Wants: ...

    @property
    def frugal(self) -> bool:
        """Whether it leaves out by itself what wouldn't save the time it takes, so that nobody else needs to."""
        ...

    def bind(self, target: Target) -> None:
        """Once, before the first request: the target whose output is drafted. Raise LoadError if they don't fit
        together.
        """
        ...

    def begin(self, sequence: Sequence) -> None:
        """`sequence` was admitted; its prompt is about to be computed. Also called again after a preemption."""
        ...

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        """A tree per sequence with at most `budget[b]` nodes (0: none). Every token must be below the target's
        vocabulary size.
        """
        ...

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        """The step is over and the sequences have their new tokens. Called after every step, plain ones included.

        `batch` are the sequences that emitted tokens (those of `propose`); it is empty in a step that only read
        prompts. A sequence may have been cut short by a stop: `sequence.tokens` counts, not `verdict`.
        """
        ...

    def end(self, sequence: Sequence) -> None:
        """`sequence` finished, was aborted or preempted: forget it."""
        ...


class BaseDrafter:
    """No-ops for everything optional."""

    frugal: ClassVar[bool] = False

    @property
    def wants(self) -> Wants:
        return Wants()

    def bind(self, target: Target) -> None:
        return None

    def begin(self, sequence: Sequence) -> None:
        return None

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        return None

    def end(self, sequence: Sequence) -> None:
        return None
