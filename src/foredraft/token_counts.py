"""Which tokens a sequence has and how often they were emitted, kept up to date as it grows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field

__all__ = ["TokenCounts"]


@dataclass(slots=True)
class TokenCounts:
    """tokens: each one once, by first occurrence; emitted: how often each occurs after the prompt; column: a token's
    place in both.
    """

    tokens: array[int] = field(default_factory=lambda: array("q"))
    emitted: array[int] = field(default_factory=lambda: array("q"))
    column: dict[int, int] = field(default_factory=dict)
    _counted: int = 0

    def catch_up(self, tokens: Collection[int], prompt_length: int) -> None:
        """Count what was appended to `tokens` since the last call; takes time for that only."""
        for place in range(self._counted, len(tokens)):
            token = tokens[place]
            column = self.column.setdefault(token, len(self.tokens))
            if column == len(self.tokens):
                self.tokens.append(token)
                self.emitted.append(0)
            self.emitted[column] += place >= prompt_length
        self._counted = len(tokens)
