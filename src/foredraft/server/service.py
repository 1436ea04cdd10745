"""One served model: the worker, the prompt reader, and the way of a request through both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from foredraft.engine.llm import LLM
from foredraft.engine.requests import check_request
from foredraft.engine.structured import CompiledForm
from foredraft.server.activity import Activity
from foredraft.server.api_errors import ApiError, bad_request, shown
from foredraft.server.forms import FormCompiler
from foredraft.server.metrics import Metrics
from foredraft.server.params import Defaults
from foredraft.server.prompts import PromptReader
from foredraft.server.settings import GENERATION_KEYS, ServerSettings
from foredraft.server.tickets import Job, Ticket
from foredraft.server.tracing import RequestTraces
from foredraft.server.worker import EngineWorker
from foredraft.types import SamplingParams

__all__ = ["LONG_BODY", "Service"]

Read = TypeVar("Read")
LONG_BODY = 50_000
"""Bytes from which on a request's texts are read in a thread of their own, so that short ones needn't wait."""

OWN_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(eq=False, slots=True)
class _Lane:
    """A thread that tokenises, with a tokenizer of its own."""

    thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="foredraft-prompts")
    )
    reader: PromptReader | None = None


@dataclass(eq=False, slots=True)
class Service:
    """What the routes work with."""

    settings: ServerSettings
    worker: EngineWorker
    metrics: Metrics
    activity: Activity
    created: int = field(default_factory=lambda: int(time.time()))
    forms: FormCompiler = field(default_factory=FormCompiler)
    traces: RequestTraces | None = None
    _defaults: Defaults | None = None
    _short: _Lane = field(default_factory=_Lane)
    _long: _Lane = field(default_factory=_Lane)

    @property
    def llm(self) -> LLM:
        """Raises ApiError (503) until the model is loaded."""
        return self.worker.llm

    @property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint: changes with the model."""
        return f"fp_{self.llm.target.fingerprint[:12] or 'none'}"

    @property
    def defaults(self) -> Defaults:
        """The checkpoint's own generation defaults, and what the settings override."""
        if self._defaults is None:
            own = self.llm.get_default_sampling_params()
            values = {name: getattr(own, name) for name in OWN_DEFAULTS}
            longest = getattr(self.llm.generation_defaults, "max_new_tokens", None)
            if longest:
                values["max_tokens"] = longest
            values |= {GENERATION_KEYS[name]: value for name, value in self.settings.generation_config.items()}
            self._defaults = Defaults(values, self.settings.max_logprobs)
        return self._defaults

    async def read(self, work: Callable[[PromptReader], Read], size: int = 0) -> Read:
        """Tokenise a body of `size` bytes in a readers' thread, so that a long prompt holds up nobody's stream. Raises
        ApiError (429) for a long one while the queue is full.
        """
        llm, lane = self.llm, self._short
        if size > LONG_BODY:
            lane = self._long
            self.worker.check_room()

        def run() -> Read:
            if lane.reader is None:
                lane.reader = PromptReader(
                    llm.tokenizer,
                    self.settings.model_names[0],
                    chat_template=self.settings.chat_template,
                    chat_template_kwargs=self.settings.chat_template_kwargs,
                    context=llm.target.max_model_len,
                )
            return work(lane.reader)

        return await asyncio.get_running_loop().run_in_executor(lane.thread, run)

    async def compile_form(self, params: SamplingParams) -> CompiledForm | None:
        """The form of the answer, before the engine's thread sees the request. Raises ApiError or RequestError."""
        if params.structured is None:
            return None
        return await self.forms.compile(self.llm.engine.grammars, params.structured)

    def check_model(self, name: str | None) -> None:
        """Raises ApiError (404) for another model than the one served."""
        if name is not None and name not in self.settings.model_names:
            served = ", ".join(self.settings.model_names)
            raise ApiError(
                404,
                f"The model {shown(name)} does not exist here; {served} does.",
                param="model",
                code="model_not_found",
            )

    def open_ticket(self, name: str, jobs: Sequence[Job], *, streams: bool) -> Ticket:
        """Check the jobs and queue them. Raises ApiError or RequestError."""
        target, room = self.llm.target, self.llm.engine.kv_room
        for job in jobs:
            answer = (job.params.max_tokens or max(1, job.params.min_tokens)) if job.generate else 0
            if len(job.prompt) + answer > target.max_model_len:
                raise bad_request(
                    f"The prompt has {len(job.prompt)} tokens and the answer may have {answer}, "
                    f"together more than the model's context of {target.max_model_len}; shorten one of them.",
                    "max_tokens" if job.params.max_tokens and len(job.prompt) < target.max_model_len else None,
                    "context_length_exceeded",
                )
            check_request(job.prompt, job.params, target, room)
        timeout = self.settings.request_timeout
        ticket = Ticket(name, tuple(jobs), streams, None if timeout is None else time.monotonic() + timeout)
        self.worker.submit(ticket)
        return ticket

    def close(self) -> None:
        """Stop the engine's thread and the others."""
        self.worker.stop()
        self.forms.close()
        if self.traces is not None:
            self.traces.close()
        for lane in (self._short, self._long):
            lane.thread.shutdown(wait=False, cancel_futures=True)
