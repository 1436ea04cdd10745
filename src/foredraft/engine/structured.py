"""Structured output: answers that follow a JSON schema, a regular expression, a grammar or a list of choices.

The work is llguidance's (extra `grammar`), here behind `Constraint`. A matcher stands where the committed tokens end;
questions about drafts move it along their paths and back. So a mask depends on the row's own path only, and
speculation stays exact: a draft that the form forbids is never picked, one that it forces always is.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from foredraft.engine.contained import ContainedConstraint
from foredraft.errors import RequestError
from foredraft.target.target import Target
from foredraft.types import Constraint, SamplingParams, StructuredOutput, StructureKind

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

__all__ = ["CompiledForm", "Grammars", "Matcher"]

CompiledForm: TypeAlias = "LLMatcher"
"""A form, ready to be followed from its beginning; whoever does so works on a copy."""

Answer = TypeVar("Answer")

COMPILED_KEPT = 64
JSON_STYLE: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One line with single spaces, like json.dumps: free whitespace would leave little forced, and some models never end
it. A schema's own "x-guidance" overrides this."""


class Grammars:
    """Compiles forms for one target and keeps the latest, as the same schema tends to come again.

    `compile` may be called from any thread, also while the engine works: a large form takes seconds, in which nobody
    should have to wait but its own request.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[StructuredOutput, CompiledForm] = OrderedDict()

    def open(
        self, params: SamplingParams, prompt_length: int, compiled: CompiledForm | None = None
    ) -> Constraint | None:
        """A constraint for one sequence; None if it has none. Raises RequestError for a form that can't be used.

        compiled  the form, if `compile` has seen to it before
        """
        form = params.structured
        if form is None:
            return None
        start = self.compile(form) if compiled is None else compiled
        assert self._target.tokenizer is not None
        unknown = range(self._target.vocab_size, len(self._target.tokenizer))
        return ContainedConstraint(Matcher(start, params, prompt_length, self._target.eos_token_ids, unknown))

    def compile(self, form: StructuredOutput) -> CompiledForm:
        """Raises RequestError for a form that can't be used."""
        with self._lock:
            found = self._compiled.get(form)
        if found is None:
            found = self._compile(form)
        with self._lock:
            self._compiled[form] = found
            self._compiled.move_to_end(form)
            if len(self._compiled) > COMPILED_KEPT:
                self._compiled.popitem(last=False)
        return found

    def _compile(self, form: StructuredOutput) -> CompiledForm:
        try:
            from llguidance import LLMatcher
        except ImportError as error:
            raise RequestError(
                f"{form.kind} needs llguidance, which is not installed; install foredraft[grammar]."
            ) from error
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = _open_tokenizer(self._target, form)
        try:
            matcher = LLMatcher(self._tokenizer, _grammar(form), log_level=0)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a form may even make the compiler panic, which is no Exception
            raise _refusal(form, str(error)) from error
        if matcher.is_error():
            raise _refusal(form, matcher.get_error())
        return matcher


class _LimitError(Exception):
    """A limit of the parser was exceeded."""


class Matcher:
    """The `Constraint` of one sequence.

    start    the compiled form, which is copied
    unknown  tokens of the tokenizer that the model has no logits for

    End tokens are allowed where the form may be complete, but not before `min_tokens` nor with `ignore_eos`.
    """

    def __init__(
        self,
        start: LLMatcher,
        params: SamplingParams,
        prompt_length: int,
        eos_token_ids: tuple[int, ...],
        unknown: Collection[int] = (),
    ) -> None:
        self._start = start
        self._matcher = start.deep_copy()
        self._prompt_length = prompt_length
        self._committed: list[int] = []
        self._min_tokens = params.min_tokens
        self._ends = frozenset(eos_token_ids)
        self._never = frozenset(unknown) | (self._ends if params.ignore_eos else frozenset())
        self._early = self._never | self._ends | frozenset(params.stop_token_ids)
        self._path: tuple[int, ...] = ()  # what the matcher has read beyond the committed tokens
        self._masks: dict[tuple[int, ...], bytes | None] = {}
        self._errors: dict[tuple[int, ...], str] = {}  # why there is no mask, where that is a limit of the parser
        self._over = False  # nothing may follow what is committed, the end token for one

    def masks(self, tokens: list[int], paths: Collection[tuple[int, ...]]) -> list[bytes | None]:
        self._advance(tokens)
        for path in sorted(set(paths) - self._masks.keys()):  # neighbours in the tree are neighbours in this order
            self._masks[path] = self._mask(path)
        return [self._masks[path] for path in paths]

    def forced(self, tokens: list[int], limit: int) -> list[int]:
        path: tuple[int, ...] = ()
        while len(path) < limit and (not path or path[-1] not in self._ends):
            [mask] = self.masks(tokens, [path])
            only = _single(mask) if mask is not None else None
            if only is None:
                break
            path = (*path, only)
        return list(path)

    def dead_end(self, tokens: list[int]) -> str | None:
        path = tuple(tokens[self._prompt_length + len(self._committed) :])
        if path not in self._masks:
            self._masks[path] = self._mask(path)
        if self._masks[path] is not None:
            return None
        if path not in self._errors and self._completes(path):
            return ""
        return self._errors.get(path, "no token of the vocabulary fits here")

    def _advance(self, tokens: list[int]) -> None:
        """Take over what was committed since."""
        new = tuple(tokens[self._prompt_length + len(self._committed) :])
        if not new or self._over:
            return
        self._errors = {}
        try:
            self._over = not self._asked(lambda: self._reaches(new))
        except _LimitError as error:
            self._over = True
            self._errors[()] = str(error)
        self._committed += new
        self._path = ()
        self._masks = {}

    def _mask(self, path: tuple[int, ...]) -> bytes | None:
        if self._over:
            return None
        try:
            return self._asked(lambda: self._mask_after(path))
        except _LimitError as error:
            self._errors[path] = str(error)
            return None

    def _mask_after(self, path: tuple[int, ...]) -> bytes | None:
        if not self._reaches(path):
            return None
        mask = self._matcher.compute_bitmask()
        self._check_limits()  # the mask would end the text as if the form were complete
        forbidden = self._early if len(self._committed) + len(path) < self._min_tokens else self._never
        mask = _without(mask, forbidden) if forbidden else mask
        return mask if any(mask) else None

    def _completes(self, path: tuple[int, ...]) -> bool:
        """Whether the form may be complete after `path`."""
        try:
            return self._asked(lambda: self._reaches(path) and self._matcher.is_accepting())
        except _LimitError:
            return False

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        """The answer of a matcher that may have used up a limit on other paths; if so, that of a new one. So whether
        a limit counts depends on the question's own path only.
        """
        try:
            return question()
        except _LimitError:
            return question()

    def _reaches(self, path: tuple[int, ...]) -> bool:
        """Move to the end of `path`; False if it isn't allowed, and the matcher then stands where it stops being so.

        End tokens are never read: nothing comes after them.
        """
        shared = 0
        for old, new in zip(self._path, path, strict=False):
            if old != new:
                break
            shared += 1
        if len(self._path) > shared:
            self._matcher.rollback(len(self._path) - shared)
        rest = path[shared:]
        legal = next((index for index, token in enumerate(rest) if token in self._ends), len(rest))
        read = self._matcher.try_consume_tokens(list(rest[:legal]))
        self._path = path[: shared + read]
        self._check_limits()
        return read == len(rest)

    def _check_limits(self) -> None:
        """Raises _LimitError if the parser gave up. A matcher never recovers from that, so a new one takes its place:
        what happened on a draft's path must not outlast the draft.
        """
        if self._matcher.is_error():
            error = _sentence(self._matcher.get_error())
            self._matcher = self._start.deep_copy()
            self._matcher.try_consume_tokens(self._committed)
            self._path = ()
            raise _LimitError(error)


def _grammar(form: StructuredOutput) -> str:
    """llguidance's own form of it. Raises ValueError."""
    from llguidance import LLMatcher, grammar_from

    match StructureKind(form.kind):
        case StructureKind.JSON_OBJECT:
            return LLMatcher.grammar_from_json_schema('{"type": "object"}', defaults=JSON_STYLE)
        case StructureKind.JSON_SCHEMA:
            json.loads(form.text)  # says what is wrong better than a schema compiler does
            return LLMatcher.grammar_from_json_schema(form.text, defaults=JSON_STYLE)
        case StructureKind.CHOICE:
            choices = json.loads(form.text)
            if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
                raise ValueError("it must be a list of at least one text")
            return grammar_from("choice", form.text)
        case StructureKind.REGEX:
            return LLMatcher.grammar_from_regex(form.text)
        case StructureKind.GRAMMAR:
            return grammar_from("grammar", form.text)


def _open_tokenizer(target: Target, form: StructuredOutput) -> LLTokenizer:
    from llguidance.hf import from_tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = target.tokenizer
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        kind = "no tokenizer" if tokenizer is None else "a tokenizer written in Python"
        raise RequestError(f"{form.kind} needs a fast tokenizer, but {target.name} has {kind}; leave it out.")
    ends = list(target.eos_token_ids)
    if not ends:
        raise RequestError(f"{form.kind} needs an end token, but {target.name} has none; leave it out.")
    return from_tokenizer(tokenizer, n_vocab=max(target.vocab_size, len(tokenizer)), eos_token=ends)


def _refusal(form: StructuredOutput, error: str) -> RequestError:
    return RequestError(f"The {form.kind} can't be used ({_sentence(error)}); correct it.")


def _sentence(error: str) -> str:
    """The line of an error that says what is wrong; llguidance's go on with a picture of the place."""
    lines = [line.strip() for line in error.strip().splitlines()] or ["no reason given"]
    line = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    return line.rstrip(".:")[:300]


def _single(mask: bytes) -> int | None:
    """The one token of a mask; None if there are more."""
    bits = int.from_bytes(mask, "little")
    return bits.bit_length() - 1 if bits & (bits - 1) == 0 else None


def _without(mask: bytes, tokens: Collection[int]) -> bytes:
    changed = bytearray(mask)
    for token in tokens:
        if token // 8 < len(changed):
            changed[token // 8] &= ~(1 << token % 8) & 0xFF
    return bytes(changed)
