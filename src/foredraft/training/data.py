"""Training data without a data set: the target invents prompts and answers them itself.

Answers must be the target's own, since its distribution is what a drafter learns. Conversations (recipes.py) are
numbered; number i is the same for a seed, whatever is decoded beside it, so a killed run goes on with the numbers that
are not on disk yet, and loses the conversations that were open.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.training.prompts import Prompts
from foredraft.training.recipes import TEXT, Recipe, choose_recipe
from foredraft.training.recording import Recorded, Recorder
from foredraft.training.records import Record, RecordWriter, read_manifest, read_records, write_manifest
from foredraft.training.turns import chat_prompt, user_turn
from foredraft.types import SamplingParams

if TYPE_CHECKING:
    from foredraft.engine.llm import LLM
    from foredraft.engine.requests import Request

__all__ = ["DataPlan", "DataProgress", "make_data"]

LONGEST_MESSAGE = 160
MESSAGE_MIN_P = 0.04
FORMAT = 1


@dataclass(frozen=True, slots=True)
class DataPlan:
    """How much of what. `prompts` are the user's own; None invents them.

    tokens        answer tokens wanted
    taps          layers whose states are kept beside the answers
    max_tokens    longest answer
    temperatures  of the answers, drawn one for each conversation
    """

    tokens: int
    seed: int = 0
    max_tokens: int = 320
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)
    prompts: Prompts | None = None
    taps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens is {self.tokens}; ask for at least 1 token of answers")
        if self.max_tokens < 8:
            raise ConfigError(f"max_tokens is {self.max_tokens}; give an answer at least 8 tokens")
        if not self.temperatures:
            raise ConfigError("there are no temperatures; give at least one, such as 0")


class DataProgress(NamedTuple):
    """tokens and records on disk; started: tokens when this run began; seconds: since then; decoded: tokens since then,
    invented messages included."""

    tokens: int
    records: int
    started: int
    seconds: float
    decoded: int


class Ask(NamedTuple):
    """One request for the engine. The answer that comes back is its tokens and its text."""

    prompt: list[int]
    params: SamplingParams


class Answer(NamedTuple):
    tokens: list[int]
    text: str
    states: Recorded | None


class Made(NamedTuple):
    """A record, and what the target computed for it."""

    record: Record
    states: Recorded | None


Conversation: TypeAlias = Generator[Ask, Answer, list[Made]]


def make_data(llm: LLM, folder: Path, plan: DataPlan, progress: Callable[[DataProgress], None]) -> DataProgress:
    """Fill `folder` until it holds `plan.tokens` answer tokens, or until the given prompts are used up.

    Goes on with what is there. Raises ConfigError if that was made with another model or other settings, CapacityError
    when the disk is full, and what kept a request from going on, if anything did.
    """
    _check_manifest(llm, folder, plan)
    writer = RecordWriter(folder)
    run = _Run(llm, plan, writer, progress)
    try:
        run.work()
    finally:
        for request_id in list(run.open):
            run.engine.abort(request_id)
        writer.close()
    return run.state


class _Run:
    """Conversations in flight. Finished ones are written at once, so their numbers are out of order on disk."""

    def __init__(
        self, llm: LLM, plan: DataPlan, writer: RecordWriter, progress: Callable[[DataProgress], None]
    ) -> None:
        self.llm, self.plan, self.writer, self.progress = llm, plan, writer, progress
        self.open: dict[str, tuple[int, Conversation, Request]] = {}
        self.prompts: set[bytes] = set()
        self.answers: set[bytes] = set()
        written = set()
        for record in read_records(writer.folder, missing_ok=True):
            self._is_new(record)
            written.add(record.item)
        items = itertools.count() if plan.prompts is None else range(len(plan.prompts))
        self.items = (item for item in items if item not in written)
        self.recorder = Recorder(plan.taps) if plan.taps else None
        self.salts = map(str, itertools.count())
        self.engine = Engine(
            llm.target,
            self.recorder,
            max_batched_tokens=llm.engine.scheduler.max_batched_tokens,
            kv_room=llm.engine.kv_room,
            method="recorder",
        )
        self.width = llm.target.cache.slots
        self.started, self.began, self.decoded = writer.tokens, time.monotonic(), 0

    @property
    def state(self) -> DataProgress:
        seconds = time.monotonic() - self.began
        return DataProgress(self.writer.tokens, self.writer.records, self.started, seconds, self.decoded)

    def work(self) -> None:
        while self.writer.tokens < self.plan.tokens:
            while len(self.open) < self.width and (item := next(self.items, None)) is not None:
                self._begin(item)
            if not self.open:
                break
            for delta in self.engine.checked_step():
                self.decoded += len(delta.token_ids)
                if delta.finish_reason is not None:
                    self._answered(delta.request_id)
            self.progress(self.state)

    def _begin(self, item: int) -> None:
        conversation = _given(self.llm, self.plan, item) if self.plan.prompts else _invented(self.llm, self.plan, item)
        self._advance(item, conversation, None)

    def _answered(self, request_id: str) -> None:
        item, conversation, request = self.open.pop(request_id)
        output = request.result().outputs[0]
        states = self.recorder.take(request_id) if self.recorder else None
        self._advance(item, conversation, Answer(list(output.token_ids), output.text, states))

    def _advance(self, item: int, conversation: Conversation, answer: Answer | None) -> None:
        try:
            ask = next(conversation) if answer is None else conversation.send(answer)
        except StopIteration as finished:
            self._write(finished.value)
            return
        # States are kept of what is computed: of whole prompts, if no request takes over another's.
        params = replace(ask.params, cache_salt=next(self.salts)) if self.recorder else ask.params
        request = self.engine.add(ask.prompt, params)
        self.open[request.id] = item, conversation, request

    def _write(self, made: list[Made]) -> None:
        """Prompts and answers that were there before are dropped."""
        for record, states in made:
            if self.writer.tokens < self.plan.tokens and self._is_new(record):
                self.writer.append(record, states)

    def _is_new(self, record: Record) -> bool:
        prompt, answer = _digest(record.prompt), _digest(record.answer)
        if prompt in self.prompts or answer in self.answers:
            return False
        self.prompts.add(prompt)
        self.answers.add(answer)
        return True


def _invented(llm: LLM, plan: DataPlan, item: int) -> Conversation:
    """A conversation whose user the target plays itself."""
    random = Random(f"{plan.seed}/{item}")
    recipe = choose_recipe(random)
    talk = _Talk(llm, plan, item, recipe.kind, random)
    opening = recipe.opening
    if recipe.source is not None:
        text = yield from talk.answer([{"role": "user", "content": recipe.source}])
        opening = opening.replace(TEXT, text.strip())
    messages = [] if recipe.system is None else [{"role": "system", "content": recipe.system}]
    for turn in range(2 if recipe.follow else 1):
        message = yield from _message(talk, recipe, messages, opening if turn == 0 else "", turn)
        if len(message) < 2:
            break
        messages.append({"role": "user", "content": message})
        reply = yield from talk.answer(messages)
        messages.append({"role": "assistant", "content": reply})
    return talk.made


def _message(
    talk: _Talk, recipe: Recipe, messages: list[dict[str, str]], opening: str, turn: int
) -> Generator[Ask, Answer, str]:
    if turn == 0 and not recipe.open:
        return opening
    llm = talk.llm
    speaking = user_turn(llm.tokenizer, messages, opening, llm.target.eos_token_ids)
    params = SamplingParams(
        temperature=1.0,
        min_p=MESSAGE_MIN_P,
        max_tokens=LONGEST_MESSAGE,
        seed=talk.seed(),
        stop_token_ids=speaking.stop_ids,
        stop=speaking.stop,
    )
    if not talk.fits(speaking.before, LONGEST_MESSAGE):
        return ""
    answer = yield Ask(speaking.before, params)
    return (opening + answer.text).strip()


def _given(llm: LLM, plan: DataPlan, item: int) -> Conversation:
    """One of the caller's prompts, answered."""
    assert plan.prompts is not None
    talk = _Talk(llm, plan, item, "given", Random(f"{plan.seed}/{item}"))
    prompt = plan.prompts[item]
    if llm.tokenizer.chat_template:
        yield from talk.answer([dict(message) for message in prompt])
    else:
        yield from talk.complete(list(llm.tokenizer.encode("\n\n".join(message["content"] for message in prompt))))
    return talk.made


class _Talk:
    """Asks for answers and collects them as records."""

    def __init__(self, llm: LLM, plan: DataPlan, item: int, kind: str, random: Random) -> None:
        self.llm, self.plan, self.item, self.kind, self.random = llm, plan, item, kind, random
        self.made: list[Made] = []

    def seed(self) -> int:
        return self.random.getrandbits(62)

    def fits(self, prompt: list[int], answer: int) -> bool:
        room = min(self.llm.target.max_model_len, self.llm.engine.kv_room) - len(prompt)
        return room > answer

    def answer(self, messages: list[dict[str, str]]) -> Generator[Ask, Answer, str]:
        text = yield from self.complete(chat_prompt(self.llm.tokenizer, messages))
        return text

    def complete(self, prompt: list[int]) -> Generator[Ask, Answer, str]:
        """The target's answer as text; empty if the prompt leaves no room for one."""
        temperature = self.random.choice(self.plan.temperatures)
        params = SamplingParams(temperature=temperature, max_tokens=self.plan.max_tokens, seed=self.seed())
        if not prompt or not self.fits(prompt, self.plan.max_tokens):
            return ""
        answer = yield Ask(prompt, params)
        if len(answer.tokens) > 1:
            record = Record(self.item, self.kind, prompt, answer.tokens, temperature)
            self.made.append(Made(record, answer.states))
        return answer.text


def _check_manifest(llm: LLM, folder: Path, plan: DataPlan) -> None:
    """Write what makes this data, or make sure that it is what made the data that is there."""
    target = llm.target
    wanted: dict[str, object] = {
        "format": FORMAT,
        "model": target.name,
        "fingerprint": target.fingerprint,
        "weight_format": target.decoder.weight_format,
        "vocab_size": target.vocab_size,
        "seed": plan.seed,
        "max_tokens": plan.max_tokens,
        "temperatures": list(plan.temperatures),
        "prompts": None if plan.prompts is None else plan.prompts.digest,
        "taps": list(plan.taps),
    }
    found = read_manifest(folder)
    if found is None:
        write_manifest(folder, wanted)
        return
    if plan.taps and not found.get("taps"):  # made without so far: only what comes now is kept
        found["taps"] = list(plan.taps)
        write_manifest(folder, found)
    for key, value in wanted.items():
        if key != "model" and found.get(key) != value and value != []:
            raise ConfigError(
                f"{folder} holds data made with {key} {found.get(key)!r}, not {value!r}; take another folder, or the "
                "same settings to go on with it"
            )


def _digest(tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(repr(list(tokens)).encode(), digest_size=12).digest()
