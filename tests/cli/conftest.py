"""Runs the command line inside this process, on tiny models. What needs its own process is in test_processes.py."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from command_line import Cli, Outcome

from foredraft.cli.main import main


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache of the user's, no network."""
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    for name in ("FOREDRAFT_DEFAULT_MODEL", "FOREDRAFT_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: object, stdin: str | bytes = "") -> Outcome:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        code = ended.value.code
        assert isinstance(code, int)
        return Outcome(code, *capsys.readouterr())

    return run
