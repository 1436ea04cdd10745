"""Reading tool calls out of an answer while it is being written.

Text goes through as it comes, except what may be the beginning of a call. A call is reported when it is complete, so
that nobody sees half of one; what only looked like a call is given back as text, not a character less. Pieces may be
cut anywhere: the sum of what comes out doesn't depend on it.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable
from typing import Any, NamedTuple

from foredraft.server.tool_seam import MessagePart
from foredraft.server.tools import ToolFormat

__all__ = ["ToolCallStream", "parse_calls"]

CALL_KEYS = {"name", "arguments", "parameters", "type", "id", "function"}
NAME = re.compile(r"([A-Za-z0-9_.-]{1,128})(\[ARGS\])?\s*(?=\{)")
NAME_SO_FAR = re.compile(r"[A-Za-z0-9_.-]{1,128}(\[(A(R(G(S\]?)?)?)?)?)?\s*")
FIRST_KEY = re.compile(r'\{\s*"([^"\\]*)"')


class _Call(NamedTuple):
    """A call that the model wrote; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


def parse_calls(
    text: str, form: ToolFormat, *, names: frozenset[str] = frozenset(), parallel: bool = True
) -> MessagePart:
    """A whole answer at once; see ToolCallStream."""
    stream = ToolCallStream(form, names=names, parallel=parallel)
    first, rest = stream.push(text), stream.finish()
    return MessagePart(first.content + rest.content, first.tool_calls + rest.tool_calls)


class ToolCallStream:
    """The answer of one choice: a ToolReader. A call comes whole, so that one delta has all of it.

    names     the tools there are; a JSON answer without a marker is a call only if it names one of them
    parallel  False: only the first call counts, as `parallel_tool_calls` wants
    make_id   makes the calls' ids
    """

    def __init__(
        self,
        form: ToolFormat,
        *,
        names: frozenset[str] = frozenset(),
        parallel: bool = True,
        make_id: Callable[[ToolFormat], str] | None = None,
    ) -> None:
        self._form = form
        self._names = names
        self._parallel = parallel
        self._make_id = make_id or _new_id
        self._held = ""
        self._read: Callable[[bool], bool] = self._read_start if form.bare else self._read_text
        self._content: list[str] = []
        self._calls: list[_Call] = []
        self._opening = ""  # how the call that is being read began, to be given back if it is none
        self._scan = _Scan()
        self._found = 0
        self._told = 0

    def push(self, text: str) -> MessagePart:
        """A further piece of the answer."""
        self._held += text
        return self._drain(final=False)

    def finish(self) -> MessagePart:
        """The end of the answer: whatever was held back, a call that was cut off included."""
        return self._drain(final=True)

    def _drain(self, *, final: bool) -> MessagePart:
        while self._read(final):
            pass
        content, calls = "".join(self._content), self._calls
        self._content, self._calls = [], []
        first = self._told
        self._told += len(calls)
        return MessagePart(content, tuple(_delta(first + index, call) for index, call in enumerate(calls)))

    # Each reader takes what it can from the held text and returns whether another reader should go on.

    def _read_start(self, final: bool) -> bool:
        """The beginning of an answer that may be a bare call."""
        text = self._held.lstrip()
        if not text and not final:
            return False
        if text.startswith("{"):
            return self._begin_call("", len(self._held) - len(text))
        self._read = self._read_text
        return True

    def _read_text(self, final: bool) -> bool:
        marker = self._form.marker
        at = self._held.find(marker)
        if at >= 0:
            self._say(self._held[:at].rstrip())
            return self._begin_call(self._held[len(self._held[:at].rstrip()) : at] + marker, at + len(marker))
        safe = len(self._held) if final else _certain(self._held, marker)
        text = self._held[:safe]
        if final and self._found and not text.strip():
            text = ""  # the line break after a call
        self._say(text)
        self._held = self._held[safe:]
        return False

    def _begin_call(self, opening: str, length: int) -> bool:
        """`length` held characters lead to the call's JSON; `opening` is how they read as text."""
        self._opening = opening or self._held[:length]
        self._held = self._held[length:]
        self._scan = _Scan()
        self._read = self._read_call
        return True

    def _read_call(self, final: bool) -> bool:
        text = self._held.lstrip()
        space = len(self._held) - len(text)
        if not text:
            return self._no_call() if final else False
        name = None
        begin = 0
        if text[0] not in "{[":
            if not self._form.listed:
                return self._no_call()
            named = NAME.match(text)
            if named is None:
                return self._no_call() if final or not NAME_SO_FAR.fullmatch(text) else False
            name, begin = named[1], named.end()
        elif self._is_bare and _is_no_call(text):
            return self._no_call()
        end = self._scan.end(text, begin)
        if end is None:
            return self._no_call() if final else False
        calls = self._calls_in(text[begin:end], name)
        if not calls:
            return self._no_call()
        self._calls += calls if self._parallel else calls[: 1 - min(1, self._found)]
        self._found += len(calls)
        self._held = self._held[space + end :]
        self._read = self._read_after
        return True

    def _read_after(self, final: bool) -> bool:
        """What may stand between one call and the next: white space, an end mark, a separator."""
        text = self._held.lstrip()
        end = self._form.end
        if end and text.startswith(end):
            self._held = text[len(end) :]
            self._read = self._read_text
            return True
        if not text or (end and end.startswith(text)):
            if final:
                self._held = ""  # an end mark that was cut off
            return False
        if self._form.bare and text[:1] in (";", ","):
            following = text[1:].lstrip()
            if not following and not final:
                return False
            if following.startswith("{"):
                return self._begin_call(
                    self._held[: len(self._held) - len(following)], len(self._held) - len(following)
                )
        self._read = self._read_text
        return True

    def _calls_in(self, text: str, name: str | None) -> list[_Call]:
        """The calls of a JSON value; none unless all of it is calls."""
        try:
            value = json.loads(text, strict=False)  # models write line breaks into strings
        except (ValueError, RecursionError):
            return []
        if name is not None:
            value = {"name": name, "arguments": value}
        calls = [self._call(each) for each in (value if isinstance(value, list) else [value])]
        return [call for call in calls if call is not None] if None not in calls else []

    def _call(self, value: Any) -> _Call | None:
        if isinstance(value, dict) and isinstance(value.get("function"), dict):
            value = value["function"]
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        if self._is_bare and (value["name"] not in self._names or not value.keys() & {"arguments", "parameters"}):
            return None
        other = "arguments" if self._form.arguments == "parameters" else "parameters"
        arguments = value.get(self._form.arguments, value.get(other, {}))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return _Call(self._make_id(self._form), value["name"], text)

    @property
    def _is_bare(self) -> bool:
        """Whether the call being read began without the marker."""
        return self._form.bare and self._form.marker not in self._opening

    def _no_call(self) -> bool:
        """It only looked like one: its beginning is text, and what follows is read again as text."""
        self._say(self._opening)
        self._read = self._read_text
        return True

    def _say(self, text: str) -> None:
        if text:
            self._content.append(text)


class _Scan:
    """Finds the end of a JSON object or list in a growing text, reading every character once."""

    def __init__(self) -> None:
        self._at = -1
        self._depth = 0
        self._in_string = False

    def end(self, text: str, begin: int) -> int | None:
        """Where the value that begins at `begin` ends; None if it goes on. The text must grow only at its end."""
        at = begin if self._at < 0 else self._at
        while at < len(text):
            letter = text[at]
            if self._in_string:
                if letter == "\\":
                    if at + 1 == len(text):
                        break  # what it escapes is still to come
                    at += 1
                elif letter == '"':
                    self._in_string = False
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
            at += 1
        self._at = at
        return None


def _delta(index: int, call: _Call) -> dict[str, Any]:
    """OpenAI's element of `delta.tool_calls`."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": index, "id": call.id, "type": "function", "function": function}


def _certain(text: str, marker: str) -> int:
    """How much of a text can't be the beginning of a marker, or the white space before one."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            text = text[:-length]
            break
    return len(text.rstrip())


def _is_no_call(text: str) -> bool:
    """Whether JSON that has just begun can't be a call, so that an answer in JSON needn't wait for its end."""
    first = FIRST_KEY.match(text)
    return text[0] != "{" or (first is not None and first[1] not in CALL_KEYS)


def _new_id(form: ToolFormat) -> str:
    if not form.id_length:
        return f"call_{secrets.token_hex(12)}"
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(form.id_length))
