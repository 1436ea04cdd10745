"""`foredraft train` from the command line, on a tiny model, and its one-sentence refusals."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from material import write_prompts

from foredraft.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["train", *(str(argument) for argument in arguments)])
    code = ended.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.stdin", io.StringIO())


def test_data_then_a_head_then_the_same_command_again(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, head = tmp_path / "data", tmp_path / "head"
    prompts = write_prompts(tmp_path)
    asked = ("data", tiny_checkpoint, "--output", data, "--tokens", 300, "--max-tokens", 20, "--prompts", prompts)
    code, said = run(capsys, *asked, "--max-num-seqs", 4, "--threads", 1)
    assert code == 0
    assert "answers, 3" in said
    assert "new in" in said

    options = ("--epochs", 2, "--batch-tokens", 200, "--threads", 1)
    code, said = run(capsys, "medusa", tiny_checkpoint, "--data", data, "--output", head, *options)
    assert code == 0
    assert "simulated acceptance length" in said
    assert "parameters to train on" in said
    written = json.loads((head / "provenance.json").read_text())
    assert written["data"]["recipe"]["max_tokens"] == 20
    assert written["options"]["heads"] == 4
    assert "foredraft" in written["versions"]
    weights = (head / "model.safetensors").read_bytes()

    code, said = run(capsys, "medusa", tiny_checkpoint, "--data", data, "--output", head, *options)
    assert code == 0
    assert (head / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["eagle3", "M", "--output", "O", "--data", "nowhere"], "--data is nowhere, which is no folder"),
        (["eagle3", "M", "--output", "O", "--data", ".", "--loss", "l1"], "--loss is 'l1'; give kl or lk"),
        (["eagle3", "M", "--output", "O", "--data", ".", "--epochs", "0"], "epochs is 0.0; give a number"),
        (["eagle3", "M", "--output", "O", "--data", ".", "--steps", "99"], "steps is 99; give a number from 1 to 16"),
        (["medusa", "M", "--output", "O", "--data", ".", "--output-layer", "x"], "output layer is 'x'; give target"),
        (["draft", "M", "--output", "O", "--data", ".", "--threads", "0"], "--threads is 0; give at least 1"),
        (
            ["draft", "M", "--output", "O", "--data", ".", "--threads", "100000"],
            "--threads is 100000, and this machine",
        ),
        (["data", "M", "--output", "O", "--threads", "100000"], "--threads is 100000, and this machine has"),
        (["eagle3", "M", "--output", "O", "--data", ".", "--intermediate", "-5"], "intermediate is -5; give a number"),
        (["eagle", "M", "--output", "O", "--data", ".", "--intermediate", "0"], "intermediate is 0; give a number"),
        (["data", "M", "--output", "FILE"], "--output is FILE, and FILE is a file; give the name of a folder"),
        (["medusa", "M", "--output", "FILE/x"], "--output is FILE/x, and FILE is a file; give the name"),
        (["data", "M", "--output", "O", "--temperatures", "hot"], "--temperatures is 'hot'; give numbers"),
        (["data", "M", "--output", "O", "--temperatures", "9"], "--temperatures is '9'; give numbers from 0 to 2"),
        (["data", "M", "--output", "O", "--prompts", "none.txt"], "none.txt can't be read"),
        (["data", "M", "--output", "O", "--tokens", "0"], "tokens is 0; ask for at least 1"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    sentence: str,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    code, said = run(capsys, *(str(tiny_checkpoint) if part == "M" else part for part in arguments))
    assert code == 2
    assert sentence in said
    assert said.strip().count("\n") == 0
    assert said.startswith("Error: ")


def test_a_student_must_be_smaller_than_its_target(
    tiny_checkpoint: Path, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys, "draft", tiny_checkpoint, "--data", answers, "--output", tmp_path / "o", "--layers", 3)
    assert code == 2
    assert "is to have 3 of the target's 3 layers; give 1 to 2" in said
