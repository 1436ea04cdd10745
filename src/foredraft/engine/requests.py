"""A request while the engine works on it: its choices, their text, and the checks before it is accepted.

All that a caller sees of a choice (tokens, text, logprobs, finish and stop reason, statistics) is derived here from one
thing: the tokens committed to its sequence, taken one by one. So EOS inside a block, a stop string across two blocks
and a length limit can't disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from foredraft.engine.outputs import CompletionOutput, Delta, Logprob, RequestOutput, SpeculationStats
from foredraft.engine.text import Piece, TextStream
from foredraft.errors import CapacityError, RequestError
from foredraft.target.target import Target
from foredraft.types import FinishReason, SamplingParams, Sequence

__all__ = ["Choice", "Request", "check_request"]


@dataclass(eq=False)
class Choice:
    """One sequence with its output. `text` is None for models without a tokenizer."""

    sequence: Sequence
    output: CompletionOutput
    text: TextStream | None

    def extend(
        self,
        tokens: list[int],
        accepted: int,
        eos: tuple[int, ...],
        max_length: int,
        logprobs: list[dict[int, Logprob]] | None,
    ) -> Delta:
        """Commit a step's tokens, of which the first `accepted` were drafts, up to the first one that ends the text."""
        sequence, output = self.sequence, self.output
        first = len(output.token_ids)
        for index, token in enumerate(tokens):
            if self._at_dead_end():
                break
            sequence.tokens.append(token)
            output.token_ids.append(token)
            output.drafted.append(index < accepted)
            if logprobs is not None:
                assert output.logprobs is not None
                output.logprobs.append(logprobs[index])
            if self._ends(token, index < accepted, eos, max_length):
                break
        output.finish_reason, output.stop_reason = sequence.finish_reason, sequence.stop_reason
        return self._delta(first)

    def abort(self) -> Delta:
        """End the choice as it stands."""
        self.sequence.finish_reason = self.output.finish_reason = FinishReason.ABORT
        return self._delta(len(self.output.token_ids))

    def fail(self) -> None:
        """End the choice without a last look at it, as its text may be what failed."""
        self.sequence.finish_reason = self.output.finish_reason = FinishReason.ABORT

    def _ends(self, token: int, drafted: bool, eos: tuple[int, ...], max_length: int) -> bool:
        sequence, params = self.sequence, self.sequence.params
        is_eos = token in eos and not params.ignore_eos
        is_stop = token in params.stop_token_ids
        early = sequence.output_length < params.min_tokens
        stop_string = None
        if self.text is not None and not (is_eos or is_stop):  # an end token is not part of the text
            stop_string = self.text.push(token, drafted, check_stop=not early)
        if is_eos or is_stop or stop_string is not None:
            sequence.finish_reason = FinishReason.STOP
            sequence.stop_reason = stop_string if stop_string is not None else None if is_eos else token
        elif sequence.remaining == 0 or len(sequence.tokens) >= max_length:
            sequence.finish_reason = FinishReason.LENGTH
        return sequence.finish_reason is not None

    def _at_dead_end(self) -> bool:
        """Structured output: whether no token may follow what is committed, so that the pick there means nothing.

        The form is complete but no end token may say so (ignore_eos, min_tokens), or the text can't become complete.
        """
        sequence = self.sequence
        trouble = sequence.constraint.dead_end(sequence.tokens) if sequence.constraint is not None else None
        if trouble is None:
            return False
        sequence.finish_reason = FinishReason.ABORT if trouble else FinishReason.STOP
        sequence.stop_reason = f"structured output: {trouble or 'complete'}"
        return True

    def _delta(self, first: int) -> Delta:
        output = self.output
        pieces: list[Piece] = []
        if self.text is not None:
            pieces = self.text.release(final=output.finished)
            output.text += "".join(piece.text for piece in pieces)
        return Delta(
            self.sequence.request_id,
            output.index,
            output.token_ids[first:],
            output.drafted[first:],
            pieces,
            None if output.logprobs is None else output.logprobs[first:],
            output.finish_reason,
            output.stop_reason,
        )


@dataclass(eq=False)
class Request:
    """A prompt and its `n` choices. `failure` is what kept it from going on, if anything did."""

    id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    choices: list[Choice] = field(default_factory=list)
    failure: Exception | None = None

    def add_choice(self, sequence: Sequence, target: Target, draft_limit: int) -> None:
        params = self.params
        text = None
        if target.tokenizer is not None:
            text = TextStream(
                target.tokenizer,
                tuple(params.stop),
                skip_special_tokens=params.skip_special_tokens,
                include_stop=params.include_stop_str_in_output,
            )
        output = CompletionOutput(
            index=sequence.choice,
            seed=sequence.seed,
            logprobs=None if params.logprobs is None else [],
            speculative_decoding=SpeculationStats(limit=draft_limit),
        )
        self.choices.append(Choice(sequence, output, text))

    def fail(self, error: Exception) -> None:
        """End all choices as they stand."""
        self.failure = error
        for choice in self.choices:
            if not choice.output.finished:
                choice.fail()

    def result(self) -> RequestOutput:
        return RequestOutput(
            self.id,
            self.prompt,
            self.prompt_token_ids,
            [choice.output for choice in self.choices],
            self.choices[0].sequence.prompt_tokens_cached,
        )


def check_request(prompt: list[int], params: SamplingParams, target: Target, room: int) -> None:
    """Raise RequestError or CapacityError, with the values and the remedy, unless the target can serve the request."""
    vocab_size, limit = target.vocab_size, target.max_model_len
    if not prompt:
        raise RequestError("The prompt is empty; give at least one token.")
    if len(prompt) >= limit:
        raise RequestError(
            f"The prompt has {len(prompt)} tokens, but the model's context holds {limit} including the answer; "
            "shorten it."
        )
    if params.max_tokens is not None and len(prompt) + params.max_tokens > limit:
        raise RequestError(
            f"The prompt has {len(prompt)} tokens and max_tokens is {params.max_tokens}, together more than the "
            f"model's context of {limit}; lower max_tokens to {limit - len(prompt)} or shorten the prompt."
        )
    wanted = len(prompt) + (params.max_tokens or 1)
    if wanted > room:
        raise CapacityError(
            f"The request needs KV cache for {wanted} tokens, but there is room for {room}; "
            "raise --kv-cache-memory-bytes or shorten the request."
        )
    named = {"prompt": prompt, "stop_token_ids": params.stop_token_ids, "logit_bias": list(params.logit_bias or ())}
    for name, tokens in named.items():
        wrong = next((token for token in tokens if not 0 <= token < vocab_size), None)
        if wrong is not None:
            raise RequestError(f"{name} has token id {wrong}; the model's vocabulary ends at {vocab_size - 1}.")
    if params.stop and target.tokenizer is None:
        raise RequestError("stop strings need a tokenizer, which this model lacks; use stop_token_ids.")
