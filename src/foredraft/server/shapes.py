"""The shapes of answers, as answers.py, chat.py and completions.py write them.

Serving doesn't check them; the API's document is made of them, and tests hold every answer against it. What a client
sends is in protocol.py.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic can't read typing's own before Python 3.12

__all__ = [
    "ChatCompletion",
    "ChatCompletionChunk",
    "Completion",
    "CompletionChunk",
    "Detokenized",
    "Error",
    "Health",
    "Load",
    "Model",
    "Models",
    "Tokenized",
    "Version",
]


class ErrorDetails(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    """What went wrong, in one sentence, and which field it was about."""

    error: ErrorDetails


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class SpeculativeDecoding(TypedDict):
    """With --per-request-spec-decode-metrics."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    drafter_failed: NotRequired[bool]


class RequestMetrics(TypedDict):
    speculative_decoding: NotRequired[SpeculativeDecoding]
    time_to_first_token_ms: NotRequired[float]
    generation_time_ms: NotRequired[float]


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class PromptLogprob(TypedDict):
    logprob: float
    rank: int
    decoded_token: str | None


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """`finish_reason` "abort" is a form of the answer that no token could go on with; `stop_reason` says why."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "abort"]
    stop_reason: int | str | None
    token_ids: NotRequired[list[int]]


class Envelope(TypedDict):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    metrics: NotRequired[RequestMetrics]


class ChatCompletion(Envelope):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]
    prompt_token_ids: NotRequired[list[int]]


class CalledFunctionPart(TypedDict):
    name: NotRequired[str]
    arguments: NotRequired[str]


class ToolCallPart(TypedDict):
    """The parts of a call with the same index belong together; their arguments are joined."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunctionPart


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallPart]]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "abort"] | None
    stop_reason: NotRequired[int | str | None]
    token_ids: NotRequired[list[int]]


class ChunkEnvelope(TypedDict):
    """With include_usage every chunk has a usage, which is null but in the last one."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: NotRequired[Usage | None]
    metrics: NotRequired[RequestMetrics]


class ChatCompletionChunk(ChunkEnvelope):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    prompt_token_ids: NotRequired[list[int]]


class CompletionLogprobs(TypedDict):
    tokens: list[str | None]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length", "abort"]
    stop_reason: int | str | None
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class Completion(Envelope):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class CompletionChunkChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length", "abort"] | None
    stop_reason: int | str | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class CompletionChunk(ChunkEnvelope):
    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]


class Tokenized(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    prompt: str


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class Models(TypedDict):
    object: Literal["list"]
    data: list[Model]


class Health(TypedDict):
    status: str


class Load(TypedDict):
    server_load: int


class Version(TypedDict):
    version: str
