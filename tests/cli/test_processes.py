"""What only a process of its own shows: start-up, signals, pipes, a terminal."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import DRAFTING
from tiny_checkpoint import save_tiny_checkpoint

pty = pytest.importorskip("pty")
COMMAND = [sys.executable, "-c", "from foredraft.cli.main import main; main()"]
GREEN, RESET = "\x1b[32m", "\x1b[0m"
PATIENCE = 60.0  # seconds


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that goes on for long enough to be interrupted."""
    return save_tiny_checkpoint(tmp_path_factory.mktemp("talkative"), context=8192)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell's background job ignores Ctrl-C, and so would the commands it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self._side, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # makes it the controlling terminal
        )
        os.close(theirs)
        self.seen = ""

    def read_until(self, done: Callable[[str], bool], patience: float = PATIENCE) -> None:
        """Collect output until `done`, or the end."""
        limit = time.monotonic() + patience
        while not done(self.seen):
            left = limit - time.monotonic()
            assert left > 0, self.seen
            if not select.select([self._side], [], [], left)[0]:
                continue
            try:
                chunk = os.read(self._side, 4096)
            except OSError:  # how Linux reports that the other side is closed
                return
            if not chunk:
                return
            self.seen += chunk.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def end(self) -> int:
        self.read_until(lambda seen: False)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._side)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: object) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


def assert_sane(seen: str) -> None:
    """Colours are reset and the cursor is visible."""
    assert seen.rfind(GREEN) < seen.rfind(RESET)
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h")


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from foredraft.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted({'torch', 'transformers', 'numpy', 'rich'} & set(sys.modules)))"
    )
    seconds = []
    for _ in range(3):  # of processor time, as a busy machine stretches any other
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert done.stdout.endswith("[]\n")
    assert "generate" in done.stdout
    assert min(seconds) < 0.3


def test_a_closed_pipe_ends_quietly(talkative: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "generate", talkative, "hello", "--ignore-eos", "--max-tokens", "8000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert len(process.stdout.read(5)) == 5
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 1


def test_ctrl_c_in_mid_stream(talkative: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "generate", talkative, "hello", "--ignore-eos", "--max-tokens", "8000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    begin = process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert len(begin + rest) < 8000
    assert rest.endswith(b"\n")
    assert errors == b""


def test_ctrl_c_leaves_the_terminal_sane(terminal: Callable[..., Terminal], talkative: Path) -> None:
    screen = terminal("generate", talkative, "hello", "--show", "--ignore-eos", "--max-tokens", 8000, *DRAFTING)
    screen.read_until(lambda seen: seen.count(GREEN) > 3)
    screen.type("\x03")
    assert screen.end() == 130
    assert_sane(screen.seen)
    assert "Loading" in screen.seen
    assert "Traceback" not in screen.seen


def test_chat_on_a_terminal(terminal: Callable[..., Terminal], talkative: Path) -> None:
    screen = terminal("chat", talkative, "--show", "--ignore-eos", "--max-tokens", 8000, *DRAFTING)
    screen.read_until(lambda seen: "> " in seen)
    screen.type("hello\n")
    screen.read_until(lambda seen: seen.count(GREEN) > 3)
    screen.type("\x03")
    screen.read_until(lambda seen: "stopped" in seen and seen.endswith("> "))
    assert_sane(screen.seen)
    screen.type("/stats\n")
    screen.read_until(lambda seen: "1 answer " in seen and seen.endswith("> "))
    screen.type("\x04")
    assert screen.end() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*COMMAND, "plan", "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("Error: stdout can't be written (")
    assert ended.stderr.count("\n") == 1


def test_closed_stdout(tiny_checkpoint: Path) -> None:
    arguments = ["generate", str(tiny_checkpoint), "hello", "--max-tokens", "2"]
    ended = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr


def test_what_a_locale_reads_though_it_is_no_text(tiny_checkpoint: Path) -> None:
    """C.UTF-8 turns bytes that are no text into halves of surrogates."""
    ended = subprocess.run(
        [*COMMAND, "chat", str(tiny_checkpoint)],
        input=b"\xff\xfe\n",
        capture_output=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert ended.returncode == 2
    assert b"stdin isn't UTF-8 text" in ended.stderr
