"""Compiles the forms of answers (schemas, grammars) in threads of their own, within bounds, so that a large one holds
up no request but its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from foredraft.engine.structured import CompiledForm, Grammars
from foredraft.server.api_errors import ApiError, bad_request
from foredraft.types import StructuredOutput

__all__ = ["FormCompiler"]

MOST_CHARACTERS = 256 * 1024
SECONDS = 10.0
THREADS = 2
RETRY_SECONDS = 5


class FormCompiler:
    """Bounds the text of a form to `most_characters` and the wait for it to `seconds`."""

    def __init__(self, *, most_characters: int = MOST_CHARACTERS, seconds: float = SECONDS) -> None:
        self._most = most_characters
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="foredraft-forms")

    async def compile(self, grammars: Grammars, form: StructuredOutput) -> CompiledForm:
        """Raises RequestError for a form that can't be used, ApiError for one that is too large or takes too long."""
        if len(form.text) > self._most:
            raise bad_request(
                f"The {form.kind} has {len(form.text)} characters, but at most {self._most} are compiled; shorten it."
            )
        work = self._threads.submit(grammars.compile, form)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(work)), self._seconds)
        except TimeoutError as error:
            if work.cancel():
                message = "Other requests' schemas and grammars are being compiled; try again soon."
                raise ApiError(503, message, code="forms_busy", retry_after=RETRY_SECONDS) from error
            message = f"The {form.kind} takes more than {self._seconds:g} seconds to compile; make it simpler."
            raise bad_request(message) from error

    def close(self) -> None:
        """Forget what waits. What is being compiled can't be stopped; it ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
