"""A constraint whose failures stay with its own sequence.

A step asks the constraints of all sequences for masks and forced tokens. One that raises there would end the step for
all; so what it raises is kept until the question that concerns its sequence alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from foredraft.types import Constraint

__all__ = ["ContainedConstraint", "FormError"]

Answer = TypeVar("Answer")


class FormError(Exception):
    """The form of an answer couldn't be followed, through no fault of the request."""


class ContainedConstraint:
    """Passes every question on to `constraint`. After a failure `masks` and `forced` know nothing, and `dead_end`,
    which is asked before a token is emitted, raises FormError.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._failure: BaseException | None = None

    def masks(self, tokens: list[int], paths: Collection[tuple[int, ...]]) -> list[bytes | None]:
        return self._ask(lambda: self._constraint.masks(tokens, paths), [None] * len(paths))

    def forced(self, tokens: list[int], limit: int) -> list[int]:
        return self._ask(lambda: self._constraint.forced(tokens, limit), [])

    def dead_end(self, tokens: list[int]) -> str | None:
        found = self._ask(lambda: self._constraint.dead_end(tokens), None)
        if self._failure is not None:
            raise FormError("The form of an answer could not be followed.") from self._failure
        return found

    def _ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        if self._failure is None:
            try:
                return question()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of compiled code is no Exception
                self._failure = error
        return otherwise
