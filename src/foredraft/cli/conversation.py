"""A conversation with a model: what was said, the next answer, and the figures of the session."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from foredraft.cli.decode import Decoded, decode
from foredraft.cli.starting import answer_params
from foredraft.cli.terminal import acceptance
from foredraft.engine.outputs import SpeculationStats
from foredraft.errors import LoadError

if TYPE_CHECKING:
    from foredraft.engine.llm import LLM
    from foredraft.engine.outputs import Delta

__all__ = ["Conversation"]


class Conversation:
    """Keeps the messages; a turn that fails leaves them as they were. Raises LoadError if the model can't chat."""

    def __init__(self, llm: LLM, given: dict[str, object], system: str | None) -> None:
        if not llm.tokenizer.chat_template:
            raise LoadError(
                f"{llm.target.name} has no chat template, so it can't chat; use `foredraft generate` to continue a text"
            )
        self._llm = llm
        self._given = given
        self._statistics = SpeculationStats()
        self._seconds = 0.0
        self._answers = 0
        self.system = system
        self.restart()

    def restart(self) -> None:
        """Forget everything but the system message."""
        self._messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        self._context = 0

    @property
    def speculative(self) -> bool:
        return self._llm.engine.drafter is not None

    def answer(self, text: str, on_delta: Callable[[Delta], None]) -> Decoded:
        """The model's answer to `text`. Ctrl-C keeps what was said so far as the answer."""
        messages = [*self._messages, {"role": "user", "content": text}]
        tokens = self._llm.encode_chat(messages)
        request = self._llm.add(tokens, answer_params(self._llm, self._given, len(tokens)))
        [output] = request.result().outputs
        began = time.perf_counter()
        try:
            return decode(self._llm.engine, request, on_delta)
        finally:
            if output.token_ids:
                self._messages = [*messages, {"role": "assistant", "content": output.text}]
                self._context = len(tokens) + len(output.token_ids)
                self._statistics.add(output.speculative_decoding)
                self._seconds += time.perf_counter() - began
                self._answers += 1

    def summary(self) -> str:
        """The session's figures, in a line."""
        numbers = self._statistics
        parts = [f"{self._answers} answer{'s' * (self._answers != 1)}", f"{numbers.emitted} tokens"]
        if self._seconds:
            parts.append(f"{numbers.emitted / self._seconds:.1f} tokens/s")
        if self.speculative:
            parts.append(acceptance(numbers))
        return " · ".join([*parts, f"context {self._context} of {self._llm.target.max_model_len} tokens"])
