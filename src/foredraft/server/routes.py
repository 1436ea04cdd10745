"""The routes: thin functions from a checked body to an answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive

from foredraft import __version__
from foredraft.engine.structured import CompiledForm
from foredraft.server.answers import Identity, speculation, usage
from foredraft.server.api_errors import bad_request
from foredraft.server.calling import prepare_calls
from foredraft.server.chat import ChatAnswer
from foredraft.server.completions import CompletionAnswer, Echo
from foredraft.server.described import CHAT, COMPLETION, ERRORS
from foredraft.server.guards import NOTE, REQUEST_ID, Note
from foredraft.server.params import chat_params, completion_params, tool_use
from foredraft.server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeRequest,
)
from foredraft.server.service import LONG_BODY, Service
from foredraft.server.shapes import Detokenized, Model, Models, Tokenized, Version
from foredraft.server.streaming import EventStream, event_blocks
from foredraft.server.tickets import Job, PromptLogprobs, Result, Ticket
from foredraft.types import SamplingParams

__all__ = ["generation_routes"]

logger = logging.getLogger("foredraft.requests")


def generation_routes(service: Service) -> APIRouter:
    """Everything that a model is needed for."""
    router = APIRouter(responses=ERRORS)

    @router.post("/v1/chat/completions", responses=CHAT)
    async def chat(body: ChatRequest, http: Request) -> Response:
        service.check_model(body.model)
        tools = tool_use(body)
        prompt, template = await service.read(
            lambda reader: (reader.chat(body, tools), reader.template), _body_size(http)
        )
        calling = prepare_calls(tools, chat_params(body, service.defaults), template, service.llm.tokenizer)
        params = calling.params
        form = await service.compile_form(params)
        job = await _job(service, prompt.tokens, prompt.text, params, form, score=body.prompt_logprobs)
        name = _name(body, http)
        ticket = service.open_ticket(name, [job], streams=bool(body.stream))
        chunked = ".chunk" if body.stream else ""
        answer = ChatAnswer(
            _identity(service, f"chatcmpl-{name}", f"chat.completion{chunked}"),
            params.logprobs,
            bool(body.return_token_ids),
            _wants_usage(service, body),
            job.prompt,
            lambda: _totals(service, ticket, body),
            calling.open_tools,
        )
        return await _respond(service, http, ticket, answer)

    @router.post("/v1/completions", responses=COMPLETION)
    async def complete(body: CompletionRequest, http: Request) -> Response:
        service.check_model(body.model)
        params = completion_params(body, service.defaults)
        service.worker.check_choices(params.n * _prompts(body))
        prompts = await service.read(lambda reader: reader.completion(body), _body_size(http))
        generates = body.max_tokens != 0
        score = body.prompt_logprobs if generates else body.prompt_logprobs or 0
        if body.echo and body.logprobs is not None:
            score = max(body.logprobs, score or 0)
        form = await service.compile_form(params)
        jobs = [
            await _job(service, prompt.tokens, prompt.text, params, form, score=score, generates=generates)
            for prompt in prompts
        ]
        echoes: list[Echo] = []
        name = _name(body, http)
        if body.echo:
            texts = [
                prompt.text if prompt.text is not None else await _decode(service, prompt.tokens) for prompt in prompts
            ]
        ticket = service.open_ticket(name, jobs, streams=bool(body.stream))
        if body.echo:
            echoes = [
                Echo(text, job.prompt, _scores(ticket, index))
                for index, (text, job) in enumerate(zip(texts, jobs, strict=True))
            ]
        answer = CompletionAnswer(
            _identity(service, f"cmpl-{name}", "text_completion"),
            params.logprobs,
            bool(body.return_token_ids),
            _wants_usage(service, body),
            jobs,
            lambda: _totals(service, ticket, body),
            echoes,
            generates,
            body.prompt_logprobs is not None,
        )
        return await _respond(service, http, ticket, answer)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest, http: Request) -> Tokenized:
        service.check_model(body.model)

        def encode(reader: Any) -> tuple[list[int], list[str] | None]:
            tokens = reader.tokenize(body).tokens
            return tokens, reader.token_texts(tokens) if body.return_token_strs else None

        tokens, texts = await service.read(encode, _body_size(http))
        limit = service.llm.target.max_model_len
        return {"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": texts}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Detokenized:
        service.check_model(body.model)
        return {"prompt": await _decode(service, body.tokens)}

    @router.get("/v1/models")
    async def models() -> Models:
        return {"object": "list", "data": [_model(service, name) for name in service.settings.model_names]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Model:
        service.check_model(name)
        return _model(service, name)

    @router.get("/version")
    async def version() -> Version:
        return {"version": __version__}

    return router


def _prompts(body: CompletionRequest) -> int:
    """A list may be several prompts, or the token ids of one."""
    several = isinstance(body.prompt, list) and body.prompt and not isinstance(body.prompt[0], int)
    return len(body.prompt) if several else 1


def _body_size(http: Request) -> int:
    """Bytes; a body that doesn't announce them counts as long."""
    return int(http.headers.get("content-length", LONG_BODY + 1))


async def _respond(service: Service, http: Request, ticket: Ticket, answer: ChatAnswer | CompletionAnswer) -> Response:
    """Wait for the answer, or begin to stream it with the first step; gives the work up when the client leaves."""
    gone = asyncio.create_task(_until_gone(http.receive))
    gone.add_done_callback(lambda task: None if task.cancelled() else service.worker.cancel(ticket))
    note: Note = http.scope[NOTE]
    note.prompt_tokens = sum(len(job.prompt) for job in ticket.jobs)

    def ended() -> None:
        gone.cancel()
        if not ticket.over:
            service.worker.cancel(ticket)
        done = [choice for result in ticket.done_results for choice in result.output.outputs]
        note.completion_tokens = sum(len(choice.token_ids) for choice in done)
        if service.traces is not None:
            operation = "chat" if isinstance(answer, ChatAnswer) else "text_completion"
            service.traces.record(ticket, operation, http.headers)

    try:
        if not ticket.streams:
            return JSONResponse(answer.whole(await ticket.finish()))
        events = ticket.events()
        first = await anext(events, None)  # what fails before the first token is still an HTTP error
        note.streamed = True
        response = EventStream(event_blocks(first, events, answer), ended)
    except BaseException:
        if ticket.streams:
            ended()
        raise
    finally:
        if not ticket.streams:
            ended()
    return response


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _job(
    service: Service,
    tokens: list[int],
    text: str | None,
    params: SamplingParams,
    form: CompiledForm | None,
    *,
    score: int | None,
    generates: bool = True,
) -> Job:
    if service.settings.log_requests:  # the only place where a text may reach the log
        logger.info("Request: %s; prompt: %r", params, text if text is not None else tokens)
    limit = service.settings.max_logprobs
    if score is not None and not 0 <= score <= limit:
        raise bad_request(f"prompt_logprobs is {score}; give a number from 0 to {limit}.", "prompt_logprobs")
    prediction: list[int] = []
    if expected := params.prediction:
        prediction = await service.read(lambda reader: reader.encode(expected, special=False))
    return Job(tokens, params, text, tuple(prediction), score, generates, form)


async def _decode(service: Service, tokens: list[int]) -> str:
    return await service.read(lambda reader: reader.decode(tokens))


def _scores(ticket: Ticket, index: int) -> Callable[[], PromptLogprobs | None]:
    def scores() -> PromptLogprobs | None:
        result = ticket.results[index]
        return result.prompt_logprobs if result else None

    return scores


def _totals(service: Service, ticket: Ticket, body: GenerationRequest) -> dict[str, Any]:
    """Usage, and the metrics that the server's flags ask for."""
    results: Sequence[Result] = ticket.done_results
    totals: dict[str, Any] = {"usage": usage(ticket.jobs, results, accounted=body.prediction is not None)}
    metrics: dict[str, Any] = {}
    if service.settings.spec_decode_metrics:
        metrics["speculative_decoding"] = speculation(results)
    if service.settings.request_metrics:
        now = time.monotonic()
        first = ticket.first_token or now
        metrics["time_to_first_token_ms"] = (first - ticket.created) * 1e3
        metrics["generation_time_ms"] = (now - first) * 1e3
    if metrics:
        totals["metrics"] = metrics
    return totals


def _wants_usage(service: Service, body: GenerationRequest) -> bool:
    asked = body.stream_options is not None and bool(body.stream_options.include_usage)
    return bool(body.stream) and (asked or service.settings.force_include_usage)


def _name(body: GenerationRequest, http: Request) -> str:
    note: Note = http.scope[NOTE]
    if body.request_id is not None and not REQUEST_ID.fullmatch(body.request_id):
        raise bad_request("request_id may have 1 to 128 letters, digits and _ . : -.", "request_id")
    return body.request_id or note.request_id


def _identity(service: Service, name: str, kind: str) -> Identity:
    return Identity(name, kind, int(time.time()), service.settings.model_names[0], service.fingerprint)


def _model(service: Service, name: str) -> Model:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "foredraft",
        "root": service.settings.model_names[0],
        "parent": None,
        "max_model_len": service.llm.target.max_model_len,
    }
