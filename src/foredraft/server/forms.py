"""Compiles the forms of answers (schemas, grammars) in threads of their own, within bounds, so that a large one holds
up no request but its own, and refuses those that no text has.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from foredraft.engine.structured import CompiledForm, Grammars
from foredraft.errors import RequestError
from foredraft.server.api_errors import ApiError, bad_request
from foredraft.server.asked_form import AskedForm
from foredraft.types import SamplingParams, StructuredOutput

__all__ = ["FormCompiler"]

MOST_CHARACTERS = 256 * 1024
SECONDS = 10.0
THREADS = 2
RETRY_SECONDS = 5
STACK_BYTES = 256 * 2**20
"""The compiler follows rules and references by recursion, and a stack that overflows ends the process. This suffices
for a chain of as many as fit into MOST_CHARACTERS; half of it does. What isn't needed takes no memory.
"""


class FormCompiler:
    """Bounds the text of a form to `most_characters` and the wait for it to `seconds`."""

    def __init__(self, *, most_characters: int = MOST_CHARACTERS, seconds: float = SECONDS) -> None:
        self._most = most_characters
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="foredraft-forms")

    async def compile(self, grammars: Grammars, form: StructuredOutput) -> CompiledForm:
        """Raises ApiError for a form that can't be used, is too large or takes too long."""
        param = form.param if isinstance(form, AskedForm) else None
        if len(form.text) > self._most:
            size = len(form.text)
            message = f"The {form.kind} has {size} characters, but at most {self._most} are compiled; shorten it."
            raise bad_request(message, param)
        work = self._submit(grammars, form)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(work)), self._seconds)
        except RequestError as error:
            raise bad_request(str(error), param) from error
        except TimeoutError as error:
            if work.cancel():
                message = "Other requests' schemas and grammars are being compiled; try again soon."
                raise ApiError(503, message, code="forms_busy", retry_after=RETRY_SECONDS) from error
            message = f"The {form.kind} takes more than {self._seconds:g} seconds to compile; make it simpler."
            raise bad_request(message, param) from error

    def _submit(self, grammars: Grammars, form: StructuredOutput) -> Future[CompiledForm]:
        """To a thread, which begins here if not all of them have yet, with a stack that suffices for any form."""
        usual = threading.stack_size(STACK_BYTES)
        try:
            return self._threads.submit(_compiled, grammars, form)
        finally:
            threading.stack_size(usual)

    def close(self) -> None:
        """Forget what waits. What is being compiled can't be stopped; it ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _compiled(grammars: Grammars, form: StructuredOutput) -> CompiledForm:
    """Raises RequestError for a form that can't be used."""
    compiled = grammars.compile(form)
    beginning = grammars.open(SamplingParams(structured=form), 0, compiled)
    if beginning is not None and beginning.dead_end([]):
        raise RequestError(f"The {form.kind} can't be used (no text begins in a way that it allows); correct it.")
    return compiled
