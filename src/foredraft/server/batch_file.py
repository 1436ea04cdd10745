"""OpenAI's batch files: lines of requests in, one line of answers for each, in the same order.

The answers' file is its own journal: a line is there, whole, or its request was not answered yet. So a batch that was
interrupted goes on after the last whole line, and a line that was cut off is written again.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from foredraft.errors import CapacityError, ConfigError

__all__ = ["URLS", "AnswerFile", "BatchLine", "answered", "first_model", "read_lines", "refused", "remaining_lines"]

URLS = ("/v1/chat/completions", "/v1/completions")
ANSWER_START = b'{"id": "'
LINE_EXAMPLE = '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}'


class BatchLine(NamedTuple):
    """A line of the file of requests.

    number   counted from 1, with blank lines
    problem  why it can't be asked at all; then url and body mean nothing
    """

    number: int
    custom_id: str | None
    url: str
    body: dict[str, Any]
    problem: str | None = None


def read_lines(path: Path) -> Iterator[BatchLine]:
    """The requests of a file, one after the other; blank lines are none. Raises ConfigError if it can't be read."""
    seen: set[str] = set()
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if raw.strip():
                    yield _parse(number, raw, seen)
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}); give a file of requests, one a line.") from error


def first_model(path: Path) -> str | None:
    """The model that the first line with one asks for."""
    models = (line.body.get("model") for line in read_lines(path))
    return next((model for model in models if isinstance(model, str) and model), None)


def remaining_lines(source: Path, done: list[str | None]) -> Iterator[BatchLine]:
    """The lines after those that are done. Raises ConfigError if these aren't the file's first ones."""
    lines = read_lines(source)
    for position, custom_id in enumerate(done):
        line = next(lines, None)
        if line is None or line.custom_id != custom_id:
            there = "ends before it" if line is None else f"has {line.custom_id!r} there"
            raise ConfigError(
                f"Answer {position + 1} belongs to the custom_id {custom_id!r}, but {source} {there}; "
                "name another file for the answers."
            )
    return lines


def answered(line: BatchLine, status: int, request_id: str, body: Any) -> dict[str, Any]:
    """The result of a request that got an answer, which may be an HTTP error."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": _new_id(), "custom_id": line.custom_id, "response": response, "error": None}


def refused(line: BatchLine) -> dict[str, Any]:
    """The result of a line that is no request."""
    error = {"code": "invalid_line", "message": line.problem}
    return {"id": _new_id(), "custom_id": line.custom_id, "response": None, "error": error}


class AnswerFile:
    """The answers, appended in order and on disk before the next ones are; open it with `AnswerFile.open`.

    custom_ids  of the answers that were there already
    failed      how many of all answers are errors
    """

    def __init__(self, path: Path, file: BinaryIO, custom_ids: list[str | None], failed: int) -> None:
        self.custom_ids = custom_ids
        self.failed = failed
        self._path = path
        self._file = file

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[AnswerFile]:
        """Raises ConfigError if it isn't a file of answers, or if another batch is writing it."""
        from filelock import FileLock, Timeout

        lock = path.with_name(f"{path.name}.lock")
        with ExitStack() as stack:
            try:
                stack.enter_context(FileLock(lock, timeout=0))
                stack.callback(lock.unlink, missing_ok=True)  # while it is still held
                file = stack.enter_context(path.open("a+b"))
                custom_ids, failed = _repair(path, file)
            except Timeout as error:
                if not os.access(path.parent, os.W_OK):
                    raise ConfigError(f"{path.parent} can't be written; name a file in another folder.") from error
                raise ConfigError(f"{path} is being written by another batch; wait, or name another file.") from error
            except OSError as error:
                raise ConfigError(f"{path} can't be written ({error.strerror}); name another file.") from error
            yield cls(path, file, custom_ids, failed)

    def append(self, results: list[dict[str, Any]]) -> None:
        """Write results as lines, on disk when it returns. Raises CapacityError if the disk is full."""
        self.failed += sum(not succeeded(result) for result in results)
        text = "".join(json.dumps(result, ensure_ascii=False) + "\n" for result in results)
        try:
            self._file.write(text.encode("utf-8", "backslashreplace"))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise CapacityError(
                f"{self._path} can't be written any more ({error.strerror}); make room and run the batch again."
            ) from error


def succeeded(result: dict[str, Any]) -> bool:
    """Whether a result is an answer and no error."""
    response = result.get("response")
    return isinstance(response, dict) and response.get("status_code") == 200


def _repair(path: Path, file: BinaryIO) -> tuple[list[str | None], int]:
    """Cut off an answer that was interrupted in its last line; the custom ids of the others, and how many are errors.

    Raises ConfigError for a file with anything else in it, which stays as it is.
    """
    custom_ids: list[str | None] = []
    failed = end = 0
    file.seek(0)
    for raw in file:
        try:
            result = json.loads(raw) if raw.endswith(b"\n") else None
        except ValueError:
            result = None
        if result is None and _is_torn(raw) and not file.read(1):
            break
        if not isinstance(result, dict) or "custom_id" not in result:
            raise ConfigError(f"Line {len(custom_ids) + 1} of {path} is no answer of a batch; name another file.")
        custom_ids.append(result["custom_id"])
        failed += not succeeded(result)
        end += len(raw)
    file.truncate(end)
    file.seek(0, os.SEEK_END)
    return custom_ids, failed


def _is_torn(raw: bytes) -> bool:
    """Whether a last line may be an answer whose end is missing, or that a full disk left without its end."""
    return raw.startswith(ANSWER_START) or ANSWER_START.startswith(raw)


def _parse(number: int, raw: bytes, seen: set[str]) -> BatchLine:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return BatchLine(number, None, "", {}, f"Line {number} is not valid JSON ({error}); write {LINE_EXAMPLE}.")
    if not isinstance(line, dict):
        return BatchLine(number, None, "", {}, f"Line {number} is no JSON object; write {LINE_EXAMPLE}.")
    name, url, body = line.get("custom_id"), line.get("url"), line.get("body")
    custom_id = name if isinstance(name, str) and name else None
    return BatchLine(number, custom_id, str(url), body if isinstance(body, dict) else {}, _problem(number, line, seen))


def _problem(number: int, line: dict[str, Any], seen: set[str]) -> str | None:
    """What is wrong with a line; its custom id is taken from then on."""
    name, method, url, body = (line.get(key) for key in ("custom_id", "method", "url", "body"))
    if not isinstance(name, str) or not name:
        return f"Line {number} has no custom_id; give it one of its own."
    if name in seen:
        return f"Line {number} has the custom_id {name!r} of an earlier line; give each its own."
    seen.add(name)
    if method != "POST":
        return f'Line {number} has the method {json.dumps(method)}; write "POST".'
    if url not in URLS:
        return f"Line {number} has the url {json.dumps(url)}; write {' or '.join(URLS)}."
    if not isinstance(body, dict):
        return f"Line {number} has no body; give the request as a JSON object."
    if body.get("stream"):
        return f"Line {number} asks for a stream; a batch has whole answers, so leave stream out."
    return None


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
