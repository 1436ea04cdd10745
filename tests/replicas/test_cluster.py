"""A cluster that can't be had is one sentence, which says what to do."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from foredraft.errors import ConfigError, LoadError
from foredraft.ray.cluster import connected, load_ray

ray = pytest.importorskip("ray")


def failing(error: Exception) -> Any:
    def start(**_: Any) -> None:
        raise error

    return start


@pytest.mark.parametrize(
    ("address", "error", "said"),
    [
        (None, RuntimeError("The current node timed out during startup.\nSee the logs."), "on this machine (The curr"),
        (None, OSError(28, "No space left on device"), "No space left on device"),
        ("10.0.0.1:6379", ConnectionError("Could not reach it."), "at '10.0.0.1:6379' can't be reached (Could not"),
        ("auto", ConnectionError(), "at 'auto' can't be reached (ConnectionError)"),
        ("x", ValueError("bad address"), "correct RAY_ADDRESS"),
    ],
)
def test_no_cluster(monkeypatch: pytest.MonkeyPatch, address: str | None, error: Exception, said: str) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "init", failing(error))
    with pytest.raises(LoadError) as raised, connected("data"):
        pass
    assert said in str(raised.value)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("library", ["data", "serve"])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, f"ray.{library}", None)
    with pytest.raises(ConfigError, match=rf"ray\[{library}\].*pip install 'foredraft\[ray\]'"):
        load_ray(library)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--replicas", "2"], "--ray"),
        (["--ray", "--replicas", "2", "--autoscale", "1:2"], "exclude each other"),
        (["--ray", "--autoscale", "2"], "1:4"),
    ],
)
def test_flags_that_contradict_each_other(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    from foredraft.cli.main import main

    (tmp_path / "in.jsonl").write_text('{"custom_id": "1", "body": {"model": "/nowhere"}}\n')
    with pytest.raises(SystemExit) as ended:
        main(["batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), *flags])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in error
    assert error.count("\n") == 1
