"""What the commands write: text to stdout, everything said about it to stderr, colour only where somebody can see it.

Drafted text is green on a terminal. Without colour (NO_COLOR, a dumb terminal, a pipe) it stands between ‹ and ›.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from foredraft.cli.compare import Comparison
    from foredraft.cli.decode import Decoded
    from foredraft.engine.outputs import SpeculationStats
    from foredraft.engine.text import Piece

__all__ = [
    "TextWriter",
    "acceptance",
    "bold",
    "both_speeds",
    "describe_difference",
    "dim",
    "figures",
    "has_colour",
    "reset_colour",
    "say",
    "transient",
]

GREEN, BOLD, DIM, RESET, ERASE_LINE = "\x1b[32m", "\x1b[1m", "\x1b[2m", "\x1b[0m", "\r\x1b[2K"
# a model may emit control characters, which must not reach a terminal: they could move the cursor or worse
CONTROL = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")


class Marks(NamedTuple):
    """What surrounds drafted text."""

    begin: str = ""
    end: str = ""


COLOUR, BRACKETS, NONE = Marks(GREEN, RESET), Marks("‹", "›"), Marks()


def has_colour(stream: TextIO) -> bool:
    """Whether escape sequences make sense there; see no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class TextWriter:
    """Streams a model's text to stdout, flushed piece by piece, drafted text marked if wanted.

    Use as a context manager: however the block ends, colours are reset and the text ends with a newline.
    """

    def __init__(self, *, show_drafts: bool) -> None:
        self._marks = NONE if not show_drafts else COLOUR if has_colour(sys.stdout) else BRACKETS
        self._on_terminal = sys.stdout.isatty()
        self._in_draft = False
        self._last = "\n"

    def write(self, pieces: Iterable[Piece]) -> None:
        """Write what a step added."""
        for text, drafted in pieces:
            if not text:
                continue
            if drafted and not self._in_draft:
                self._in_draft = True  # first, so that Ctrl-C right here still leads to an end mark
                sys.stdout.write(self._marks.begin)
            elif self._in_draft and not drafted:
                sys.stdout.write(self._marks.end)
                self._in_draft = False
            sys.stdout.write(text.translate(CONTROL) if self._on_terminal else text)
            self._last = text
        sys.stdout.flush()

    def __enter__(self) -> TextWriter:
        return self

    def __exit__(self, *error: object) -> None:
        end = self._marks.end if self._in_draft else ""
        self._in_draft = False
        sys.stdout.write(end + ("" if self._last.endswith("\n") else "\n"))
        sys.stdout.flush()
        self._last = "\n"


def say(text: str = "") -> None:
    """A line on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def reset_colour() -> None:
    """For an end at any moment: what was being coloured on stdout stays so no longer."""
    if has_colour(sys.stdout):
        sys.stdout.write(RESET)
        sys.stdout.flush()


def dim(text: str, stream: TextIO | None = None) -> str:
    """Fainter, where that can be seen; for stderr unless told otherwise."""
    return f"{DIM}{text}{RESET}" if has_colour(stream or sys.stderr) else text


def bold(text: str) -> str:
    """For stdout: stronger, where that can be seen."""
    return f"{BOLD}{text}{RESET}" if has_colour(sys.stdout) else text


@contextmanager
def transient(text: str) -> Iterator[Callable[[str], None]]:
    """A line on the terminal while the block runs, gone afterwards; the block gets a function that changes it."""
    visible = has_colour(sys.stderr)

    def show(line: str) -> None:
        if visible:
            sys.stderr.write(f"{ERASE_LINE}{dim(line)}" if line else ERASE_LINE)
            sys.stderr.flush()

    show(text)
    try:
        yield show
    finally:
        show("")


def speed(decoded: Decoded) -> str:
    """How much came in what time; "limit" when there might have been more."""
    count = f"{decoded.tokens} token{'s' * (decoded.tokens != 1)}" + (" (limit)" if decoded.cut else "")
    return f"{count} · {decoded.seconds:.2f} s · {decoded.throughput:.1f} tokens/s"


def figures(decoded: Decoded, *, speculative: bool) -> str:
    """The figures of one answer, in a line."""
    parts = [speed(decoded), f"first token {decoded.first_token_seconds:.2f} s"]
    if speculative:
        parts.append(acceptance(decoded.statistics))
    return " · ".join(parts)


def both_speeds(comparison: Comparison) -> str:
    """The figures of a plain and a speculative run, in a line each."""
    return f"plain        {speed(comparison.plain)}\nspeculative  {speed(comparison.speculative)}"


def acceptance(statistics: SpeculationStats) -> str:
    """Tokens per pass of the target, and the share of drafts that were right."""
    return f"acceptance length {statistics.acceptance_length:.2f}, rate {statistics.acceptance_rate:.0%}"


def describe_difference(comparison: Comparison) -> str:
    """Where the two runs part and how they go on; empty if they don't part."""
    difference = comparison.difference
    if difference is None:
        return ""
    several = len(comparison.plain.result.outputs) > 1
    return (
        f"from token {difference.position + 1}{f' of answer {difference.choice + 1}' * several} on, "
        f"where the two best scores are {difference.gap:.2g} apart\n"
        f"  after        …{difference.before!r}\n"
        f"  plain        {difference.plain!r}…\n"
        f"  speculative  {difference.speculative!r}…"
    )
