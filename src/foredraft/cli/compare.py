"""Decodes a prompt twice in one engine's model, plainly and by speculation, and says whether the tokens are the same.

The prompt is read once beforehand and its keys and values serve both runs: both times are those of decoding alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from foredraft.bench.differences import first_difference, top_two_gap
from foredraft.cli.decode import Decoded, decode
from foredraft.engine.engine import Engine

if TYPE_CHECKING:
    from foredraft.engine.llm import LLM
    from foredraft.engine.outputs import Delta
    from foredraft.types import SamplingParams

__all__ = ["Comparison", "Difference", "against", "compare", "decode_plainly"]

CONTEXT = 8  # tokens shown before and after a difference


class Difference(NamedTuple):
    """The first differing token of a choice: how many tokens before it agree, and the texts around it.

    gap  between the two best scores there, in logits: tiny for a near tie, which rounding decides
    """

    choice: int
    position: int
    gap: float
    before: str
    plain: str
    speculative: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both runs, and the first difference between them, if any."""

    plain: Decoded
    speculative: Decoded
    difference: Difference | None

    @property
    def identical(self) -> bool:
        return self.difference is None

    @property
    def speedup(self) -> float:
        """Tokens per second by speculation over those without it."""
        return self.speculative.throughput / self.plain.throughput if self.plain.throughput else 0.0


def decode_plainly(
    llm: LLM, prompt: list[int], params: SamplingParams, on_delta: Callable[[Delta], None] = lambda _: None
) -> Decoded:
    """The same model and KV cache without a drafter: the yardstick."""
    plain_engine = Engine(llm.target, kv_room=llm.engine.kv_room)
    decode(plain_engine, plain_engine.add(prompt, replace(params, n=1, max_tokens=1, min_tokens=0)))  # reads the prompt
    return decode(plain_engine, plain_engine.add(prompt, params), on_delta)


def compare(
    llm: LLM, prompt: list[int], params: SamplingParams, on_delta: Callable[[Delta], None] = lambda _: None
) -> Comparison:
    """Decode `prompt` plainly, then by speculation with the same seed; the latter is streamed to `on_delta`."""
    plain = decode_plainly(llm, prompt, params)
    return against(llm, plain, prompt, params, on_delta)


def against(
    llm: LLM, plain: Decoded, prompt: list[int], params: SamplingParams, on_delta: Callable[[Delta], None]
) -> Comparison:
    """Decode by speculation what was decoded plainly before."""
    seeded = replace(params, seed=plain.result.outputs[0].seed)
    speculative = decode(llm.engine, llm.add(prompt, seeded), on_delta)
    return Comparison(plain, speculative, _difference(llm, plain, speculative, seeded))


def _difference(llm: LLM, plain: Decoded, speculative: Decoded, params: SamplingParams) -> Difference | None:
    for one, other in zip(plain.result.outputs, speculative.result.outputs, strict=True):
        position = first_difference(one.token_ids, other.token_ids)
        if position is not None:
            common = one.token_ids[:position]
            gap = top_two_gap(llm.target, plain.result.prompt_token_ids, common, params)
            before, after = common[-CONTEXT:], slice(position, position + CONTEXT)
            texts = [str(llm.tokenizer.decode(part)) for part in (before, one.token_ids[after], other.token_ids[after])]
            return Difference(one.index, position, gap, *texts)
    return None
