"""`LLM`: a model and its engine behind three verbs - generate, stream, chat. The interface is vLLM's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from foredraft.engine.open_target import EngineArgs, open_target
from foredraft.engine.outputs import Delta, RequestOutput
from foredraft.engine.requests import Request
from foredraft.engine.speculation import build_engine, parse_speculation
from foredraft.errors import RequestError
from foredraft.types import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["LLM", "Message", "Prompt"]

Prompt: TypeAlias = str | list[int]
Message: TypeAlias = Mapping[str, str]


@dataclass(eq=False)
class _Stream:
    """A request that is read as it is decoded, and what of it is not read yet."""

    request: Request
    unread: deque[Delta] = field(default_factory=deque)


class LLM:
    """Loads a model and decodes prompts with it, by speculation unless `speculative_config` is None.

        llm = LLM("smollm2-135m", speculative_config={"method": "ngram", "num_speculative_tokens": 8})
        [result] = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=32))

    `model` is a hub id, a folder, a .gguf file or an alias. Raises LoadError, ConfigError or CapacityError.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: Mapping[str, object] | None = None,
        dtype: str = "auto",
        quantization: str | None = None,
        device: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 512,
        kv_cache_memory_bytes: int | None = None,
        enforce_eager: bool = False,
        revision: str | None = None,
        trust_remote_code: bool = False,
        offline: bool = False,
        seed: int | None = None,
    ) -> None:
        args = EngineArgs(
            model=model,
            dtype=dtype,
            quantization=quantization,
            device=device,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            enforce_eager=enforce_eager,
            revision=revision,
            trust_remote_code=trust_remote_code,
            offline=offline,
            seed=seed,
        )
        self._start(args, speculative_config)

    @classmethod
    def from_args(cls, args: EngineArgs, speculative_config: Mapping[str, object] | None = None) -> LLM:
        """The same from an `EngineArgs`."""
        llm = cls.__new__(cls)
        llm._start(args, speculative_config)
        return llm

    def _start(self, args: EngineArgs, speculative_config: Mapping[str, object] | None) -> None:
        speculation = parse_speculation(speculative_config)
        opened = open_target(args)
        self.generation_defaults = opened.generation_defaults
        self.target = opened.target
        self.engine = build_engine(opened, args, speculation)
        self._streams: dict[str, _Stream] = {}

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer. Raises RequestError if it has none."""
        if self.target.tokenizer is None:
            raise RequestError(f"{self.target.name} has no tokenizer; give token ids instead of text.")
        return self.target.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the checkpoint's generation_config.json recommends."""
        own = self.generation_defaults
        if own is None:
            return SamplingParams()
        values = {name: getattr(own, name, None) for name in ("top_p", "top_k", "min_p", "repetition_penalty")}
        temperature = (own.temperature if own.do_sample else 0.0) if own.do_sample is not None else None
        known: dict[str, Any] = {k: v for k, v in {**values, "temperature": temperature}.items() if v is not None}
        return replace(SamplingParams(), **known)

    def generate(
        self,
        prompts: Prompt | list[str] | list[list[int]],
        sampling_params: SamplingParams | Collection[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Decode all prompts together and return the results in their order.

        `prompts` is a text, a list of texts, token ids or a list of token ids; `sampling_params` one for all or one for
        each. Raises RequestError for a prompt that can't be served, before any is decoded.
        """
        inputs = _as_list(prompts)
        params = _per_prompt(sampling_params or self.get_default_sampling_params(), len(inputs))
        requests: list[Request] = []
        try:
            for prompt, one in zip(inputs, params, strict=True):
                requests.append(self.add(prompt, one))
            while not all(request.result().finished for request in requests):
                self._step()
                _raise_failure(requests)
        finally:  # an error or Ctrl-C leaves nothing behind in the engine
            for request in requests:
                self.engine.abort(request.id)
        return [request.result() for request in requests]

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[Delta]:
        """Decode one prompt, yielding what each step added. Closing the iterator aborts the request.

        Several may be read in turns, and `generate` called meanwhile: they share the engine's steps.
        """
        request = self.add(prompt, sampling_params or self.get_default_sampling_params())
        stream = self._streams[request.id] = _Stream(request)
        try:
            while True:
                while stream.unread:
                    yield stream.unread.popleft()
                _raise_failure([request])
                if request.result().finished:
                    return
                self._step()
        finally:
            del self._streams[request.id]
            self.engine.abort(request.id)

    def chat(
        self,
        messages: list[Message] | list[list[Message]],
        sampling_params: SamplingParams | Collection[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Like `generate`, for one conversation or several, each a list of {"role": ..., "content": ...}."""
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast(list[list[Message]], [messages] if single else messages)
        return self.generate([self.encode_chat(conversation) for conversation in conversations], sampling_params)

    def encode_chat(self, messages: Collection[Message]) -> list[int]:
        """A conversation as token ids, by the model's chat template, ready for the model's next turn."""
        tokenizer = self.tokenizer
        if not tokenizer.chat_template:
            raise RequestError(f"{self.target.name} has no chat template; give a plain prompt instead.")
        from jinja2 import TemplateError

        conversation = [dict(message) for message in messages]
        try:
            text = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            raise RequestError(
                f"{self.target.name}'s chat template refuses the conversation ({error}); change its roles or order."
            ) from error
        return self._tokens(str(text), special=False)

    def add(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Queue one request on the engine; `generate` and `stream` are usually what you want."""
        tokens = self._tokens(prompt) if isinstance(prompt, str) else prompt
        text = prompt if isinstance(prompt, str) else None
        prediction = self._tokens(params.prediction, special=False) if params.prediction else ()
        return self.engine.add(tokens, params, text=text, prediction=prediction)

    def _tokens(self, text: str, *, special: bool = True) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            place = f"{text[error.start]!r} at character {error.start}"
            raise RequestError(f"The text has half a surrogate pair, {place}; give text that is Unicode.") from error
        return list(self.tokenizer.encode(text, add_special_tokens=special))

    def _step(self) -> None:
        """One step for everybody, whose news the streams will find. If it raises, it has spoilt those in it, too."""
        try:
            deltas = self.engine.step()
        except BaseException as error:
            for request_id in self.engine.drop_running():
                if stream := self._streams.get(request_id):
                    stream.request.fail(RuntimeError(f"a step of the engine failed: {error!r}"))
            raise
        for delta in deltas:
            if stream := self._streams.get(delta.request_id):
                stream.unread.append(delta)


def _raise_failure(requests: Collection[Request]) -> None:
    for request in requests:
        if request.failure is not None:
            raise request.failure


def _as_list(prompts: Prompt | list[str] | list[list[int]]) -> list[Prompt]:
    if isinstance(prompts, str) or (isinstance(prompts, list) and prompts and _are_tokens(prompts)):
        return [cast(Prompt, prompts)]
    if not isinstance(prompts, (list, tuple)) or not all(isinstance(one, str) or _are_tokens(one) for one in prompts):
        raise RequestError(f"prompts is {prompts!r:.100}; give a text, token ids, or a list of either.")
    return list(cast(list[Prompt], prompts))


def _are_tokens(prompt: object) -> bool:
    return isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)


def _per_prompt(params: SamplingParams | Collection[SamplingParams], count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise RequestError(f"There are {count} prompts but {len(params)} sampling_params; give one, or one for each.")
    return list(params)
