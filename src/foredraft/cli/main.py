"""The command `foredraft`: runs the subcommand and turns whatever goes wrong into one sentence and an exit code.

Nothing heavy is imported here: a subcommand's module is imported when it runs, and `foredraft --help` needs none.
Exit codes: 0 done, 1 a comparison found a difference, a batch has errors or the reader of stdout left, 2 bad input,
70 a bug in foredraft, 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from foredraft import __version__
from foredraft.cli.sections import SectionedCommand
from foredraft.cli.terminal import reset_colour
from foredraft.errors import ForedraftError

__all__ = ["main"]

BAD_INPUT = 2
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h


class Subcommand(NamedTuple):
    """Where a subcommand is: `attribute` of `module` is a function or a Typer app."""

    module: str
    attribute: str
    summary: str


SUBCOMMANDS = {
    "demo": Subcommand("foredraft.cli.demo", "demo", "Decode three prompts plainly and by speculation, and compare."),
    "generate": Subcommand("foredraft.cli.generate", "generate", "Answer or complete one prompt."),
    "chat": Subcommand("foredraft.cli.chat", "chat", "Talk with a model in the terminal."),
    "serve": Subcommand("foredraft.cli.serve", "serve", "Serve a model over OpenAI's API."),
    "batch": Subcommand("foredraft.cli.batch", "batch", "Answer a file of requests, one answer a line."),
    "bench": Subcommand("foredraft.cli.bench", "app", "Measure speed, acceptance, time split and memory."),
    "train": Subcommand("foredraft.cli.train", "app", "Train a drafter for a model, with data it makes itself."),
    "inspect": Subcommand("foredraft.cli.inspect", "inspect", "Say what a drafting head is and how it is read."),
    "export": Subcommand("foredraft.cli.export", "export", "Write a drafting head in another format."),
    "plan": Subcommand("foredraft.cli.plan", "plan", "Work out what speculation can gain, from a few numbers."),
    "doctor": Subcommand("foredraft.cli.doctor", "doctor", "Check this machine: speed of a pass, and how exact it is."),
}


class LazyGroup(TyperGroup):
    """Lists its subcommands by name and summary, and imports the one that is run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in SUBCOMMANDS else placeholder, rest


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foredraft {__version__}")
        raise typer.Exit


@app.callback()
def foredraft(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Speculative decoding for Hugging Face causal language models: exactly the same tokens, sooner."""


def load(name: str) -> Any:
    """The click command of a subcommand, its module imported."""
    entry = SUBCOMMANDS[name]
    found = getattr(import_module(entry.module), entry.attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    single.command(name, cls=SectionedCommand)(found)
    return typer.main.get_command(single)


def build_group() -> TyperGroup:
    """The whole command line, with a light stand-in for every subcommand that is installed."""
    group = typer.main.get_group(app)
    for name, entry in SUBCOMMANDS.items():
        if find_spec(entry.module) is not None:
            group.commands[name] = TyperCommand(name, help=entry.summary)
    return group


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in SystemExit. FOREDRAFT_DEBUG=1 adds the traceback to error messages."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that can't show a character shows "?" instead
            stream.reconfigure(errors="replace")
    _open_closed_streams()
    try:
        build_group().main(arguments, prog_name="foredraft")
    except OSError as error:
        fail(*_unwritable(error), error)
    except ForedraftError as error:
        fail(str(error), BAD_INPUT, error)
    except KeyboardInterrupt:
        reset_colour()
        sys.exit(130)
    except Exception as error:
        fail(_bug(error), INTERNAL_ERROR, error)


def _open_closed_streams() -> None:
    """Stand-ins for those that whoever started this has closed; they live as long as the process."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _unwritable(error: OSError) -> tuple[str, int]:
    """The sentence and the exit code. Without a file's name it is about stdout, all else having its own sentences."""
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - or closing it would raise once more
        return f"stdout can't be written ({error.strerror}); make room, or send it elsewhere", BAD_INPUT
    return _bug(error), INTERNAL_ERROR


def _bug(error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    remedy = "please report it, with the traceback that FOREDRAFT_DEBUG=1 adds"
    return f"{reason}. This is a bug in foredraft; {remedy}"


def fail(message: str, code: int, error: Exception) -> None:
    if os.environ.get("FOREDRAFT_DEBUG") == "1":
        traceback.print_exception(error)
    typer.echo(f"Error: {message.rstrip('.')}.", err=True)
    sys.exit(code)
