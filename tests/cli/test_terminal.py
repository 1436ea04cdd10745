"""What is written to a terminal, and what to anything else."""

from __future__ import annotations

import io

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
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    return screen


def written(*pieces: Piece, show_drafts: bool = True) -> None:
    with TextWriter(show_drafts=show_drafts) as writer:
        for piece in pieces:
            writer.write([piece])


def test_drafts_are_green_on_a_terminal(screen: Screen) -> None:
    written(*PIECES)
    assert screen.getvalue() == "own \x1b[32mdrafted\n\x1b[0mend\n"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_drafts_are_bracketed_without_colour(
    variable: str, value: str, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert not has_colour(screen)
    written(*PIECES)
    with transient("Loading"):
        screen.write(dim("plain"))
    assert screen.getvalue() == "own ‹drafted\n›end\nplain"


def test_unmarked_text_is_the_text(screen: Screen) -> None:
    written(*PIECES, show_drafts=False)
    assert screen.getvalue() == "own drafted\nend\n"


def test_an_interruption_resets_the_colour_and_ends_the_line(screen: Screen) -> None:
    with pytest.raises(KeyboardInterrupt), TextWriter(show_drafts=True) as writer:
        writer.write(PIECES[:2])
        raise KeyboardInterrupt
    assert screen.getvalue() == "own \x1b[32mdraft\x1b[0m\n"


def test_control_characters_do_not_reach_a_terminal(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    dangerous = Piece("\x1b]0;title\x07\ttab\x9b", False)
    written(dangerous)
    assert (
        screen.getvalue()
        == "\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}\ttab\N{REPLACEMENT CHARACTER}\n"
    )
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stdout", pipe)
    written(dangerous)
    assert pipe.getvalue() == dangerous.text + "\n"


def test_a_transient_line_is_erased(screen: Screen) -> None:
    with transient("Loading") as show:
        show("Loading more")
    assert "Loading more" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[2K")


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("1500", 1500), ("2k", 2000), ("2K", 2048), ("1.5G", 3 * 2**29), ("3g", 3 * 10**9)]
)
def test_byte_counts(text: str, count: int) -> None:
    assert byte_count(text) == count
