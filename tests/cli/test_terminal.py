"""What is written to a terminal, and what to anything else."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from foredraft.cli.parse import byte_count
from foredraft.cli.terminal import TextWriter, dim, has_colour, transient
from foredraft.engine.text import Piece

PIECES = [Piece("own ", False), Piece("draft", True), Piece("ed\n", True), Piece("end", False)]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("TERM", "xterm")
    return Screen()


def write(stream: io.StringIO, pieces: list[Piece], *, show_drafts: bool = True) -> str:
    """What comes out when a model's pieces are written to `stream`."""
    with redirect_stdout(stream), TextWriter(show_drafts=show_drafts) as writer:
        for piece in pieces:
            writer.write([piece])
    return stream.getvalue()


def test_drafts_are_green_on_a_terminal(screen: Screen) -> None:
    assert write(screen, PIECES) == "own \x1b[32mdrafted\n\x1b[0mend\n"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_nothing_is_coloured_unasked(
    variable: str, value: str, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert not has_colour(screen)
    assert write(screen, PIECES) == "own ‹drafted\n›end\n"
    assert dim("text", screen) == "text"
    errors = Screen()
    with redirect_stderr(errors), transient("Loading"):
        pass
    assert errors.getvalue() == ""


def test_unmarked_text_is_the_text(screen: Screen) -> None:
    assert write(screen, PIECES, show_drafts=False) == "own drafted\nend\n"


def test_an_interruption_resets_the_colour_and_ends_the_line(screen: Screen) -> None:
    def interrupted() -> None:
        with redirect_stdout(screen), TextWriter(show_drafts=True) as writer:
            writer.write(PIECES[:2])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen.getvalue() == "own \x1b[32mdraft\x1b[0m\n"


def test_control_characters_do_not_reach_a_terminal(screen: Screen) -> None:
    dangerous = "\x1b]0;title\x07\ttab\x9b"
    assert write(screen, [Piece(dangerous, False)]) == "�]0;title�\ttab�\n"
    assert write(io.StringIO(), [Piece(dangerous, False)]) == f"{dangerous}\n"


def test_a_transient_line_is_erased(screen: Screen) -> None:
    with redirect_stderr(screen), transient("Loading") as show:
        show("Loading more")
    assert "Loading more" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[2K")


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("1500", 1500), ("2k", 2000), ("2K", 2048), ("1.5G", 3 * 2**29), ("3g", 3 * 10**9)]
)
def test_byte_counts(text: str, count: int) -> None:
    assert byte_count(text) == count
