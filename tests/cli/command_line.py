"""A command that was run: how it ended and what it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The one line on stderr that says what was wrong."""
        assert self.code == 2
        assert self.out == ""
        assert self.err.startswith("Error: ")
        assert self.err.endswith(".\n")
        assert self.err.count("\n") == 1
        return self.err.removeprefix("Error: ").removesuffix("\n")


Cli = Callable[..., Outcome]
# drafts always, where otherwise the measured controller may find that drafting doesn't pay for a model this small
DRAFTING = ("-sc", '{"method": "ngram", "controller": "off"}')
