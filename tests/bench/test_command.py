"""`foredraft bench` through the command line: output is one JSON object, bad input is one sentence and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foredraft.cli.main import main


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", *arguments])
    captured = capsys.readouterr()
    return int(exit_info.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["offline", "--workload", "maths"], "workload 'maths' is unknown; use one of chat, edit"),
        (["offline", "--category", "maths"], "category 'maths' is unknown; use one of chat, edit"),
        (["offline", "--dataset", "/nowhere/x.jsonl"], "The dataset /nowhere/x.jsonl can't be read"),
        (["offline", "--num-prompts", "0"], "num_prompts is 0"),
        (["offline", "--concurrency", "1,x"], "--concurrency has 'x'"),
        (["offline", "--concurrency", "0"], "concurrency is 0"),
        (["offline", "--temperature", "nan"], "temperature is nan"),
        (["offline", "--max-tokens", "0"], "max_tokens is 0"),
        (["offline", "-sc", "{"], "--speculative-config '{' is not JSON"),
        (["offline", "/nowhere/model"], "/nowhere/model"),
        (["micro", "--kind", "speed"], "kind 'speed' is unknown"),
        (["micro", "--rows", "1,,2"], "--rows has ''"),
        (["micro", "/nowhere/model"], "/nowhere/model"),
    ],
)
def test_bad_input(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(*arguments, capsys=capsys)
    assert code == 2
    assert not out
    assert complaint in err
    assert len(err.strip().splitlines()) == 1


def test_dataset_and_workload_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"prompt": "hi"}))
    code, _, err = run("offline", "--dataset", str(path), "-w", "chat", capsys=capsys)
    assert code == 2
    assert "leave one out" in err
