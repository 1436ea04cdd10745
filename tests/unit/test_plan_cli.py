"""`foredraft plan`: its figures, its JSON, its refusals, and where it looks for pass times."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest

from foredraft.cli.main import main
from foredraft.cli.plan import Passes
from foredraft.page import page_directory

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `foredraft plan ...`, checks the exit code, and gives stdout, or stderr after a failure."""

    def command(*arguments: object, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["plan", *map(str, arguments)])
        captured = capsys.readouterr()
        assert (ended.value.code or 0) == code, captured.err
        return captured.err if code else captured.out

    return command


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A machine on which every row costs 1 ms beyond the fourth, and a pass 4 ms."""
    cells = [{"kind": "pass", "rows": rows, "cached": 0, "pass_ms": max(4.0, rows)} for rows in (1, 4, 8, 16, 64)]
    path = tmp_path / "machine.json"
    meta = {"model": "some-model", "machine": "some machine"}
    path.write_text(json.dumps({"meta": meta, "cells": [*cells, {"kind": "host", "host_ms": 1}]}))
    return path


def test_reference_point(run: Run) -> None:
    answer = json.loads(run("--acceptance", 0.75, "--draft-length", 4, "--draft-cost", 0.15, "--json"))
    assert (
        f"{answer['tokens_per_cycle']:.2f} {answer['cost_per_cycle']:.2f} {answer['speedup']:.2f}" == "3.05 1.60 1.91"
    )
    assert answer["verdict"] == "Clear win"
    assert answer["best_length"] == 4
    assert answer["break_even_acceptance"] == pytest.approx(0.3799, abs=1e-4)
    assert answer["break_even_cost"] == pytest.approx(0.5127, abs=1e-4)
    assert answer["batches"] == []


def test_without_options_it_answers_for_the_reference_point(run: Run) -> None:
    printed = run()
    for words in ("3.05", "1.60", "1.91x", "Clear win", "best draft length is 4"):
        assert words in printed
    best = next(line for line in printed.splitlines() if "< best" in line)
    assert best.split()[0] == "4"
    assert max(line.count("█") for line in printed.splitlines()) == best.count("█")


@pytest.mark.parametrize(
    ("acceptance", "length", "cost", "verdict", "best"),
    [
        (0.5, 2, 0.4, "Break-even", 1),
        (0.5, 2, 0.2, "Modest", 1),
        (0.3, 8, 0.4, "A loss: paying for compute to go slower", 0),
        (0.9, 0, 0.1, "Break-even", 10),
        (1.0, 4, 0.0, "Clear win", 16),
    ],
)
def test_other_regimes(run: Run, acceptance: float, length: int, cost: float, verdict: str, best: int) -> None:
    numbers = ("--acceptance", acceptance, "--draft-length", length, "--draft-cost", cost)
    answer = json.loads(run(*numbers, "--json"))
    assert (answer["verdict"], answer["best_length"]) == (verdict, best)
    assert verdict in run(*numbers)


def test_drafts_dearer_than_a_pass_have_no_break_even_acceptance(run: Run) -> None:
    numbers = ("--draft-length", 3, "--draft-cost", 1.5)
    assert json.loads(run(*numbers, "--json"))["break_even_acceptance"] is None
    assert "no acceptance is enough" in " ".join(run(*numbers).split())


def test_a_busy_data_sheet_stops_paying(run: Run) -> None:
    command = ("--batch", "1,16,512", "--machine", "h200", "--shape", "llama-3.1-8b", "--context", 128)
    one, some, many = json.loads(run(*command, "--json"))["batches"]
    assert one["speedup"] == pytest.approx(1.907, abs=1e-3)
    assert one["verify_cost"] == some["verify_cost"] == 1
    assert many["verdict"].startswith("A loss")
    assert many["best_speedup"] >= 1
    assert "A loss" in run(*command)


def test_a_profile_replaces_the_data_sheet(run: Run, profile: Path) -> None:
    one, many = json.loads(run("--profile", profile, "--batch", "1,8", "--context", 0, "--json"))["batches"]
    assert (one["verify_cost"], many["verify_cost"]) == (5 / 4, 5)
    assert many["best_length"] == 0
    assert "some-model, some machine" in run("--profile", profile, "--batch", 1)


def test_measure_prints_what_the_page_reads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = tuple({"kind": "pass", "rows": rows, "cached": 64, "batch": 1, "pass_ms": 2.0 + rows} for rows in (1, 2))
    drafts = (
        {"kind": "draft", "method": "ngram", "draft_ms": 0.1, "draft_length": 8, "draft_nodes": 8, "draft_cost": 0.25},
        {"kind": "draft", "method": "lazy", "draft_ms": None, "draft_length": 0, "draft_nodes": 0, "draft_cost": None},
        {"kind": "draft", "method": "slow", "draft_ms": 9.0, "draft_length": 2, "draft_nodes": 5, "draft_cost": 1.5},
    )
    meta = {"model": "tiny"}
    measured = Passes(lambda rows, cached, batch: 2.0 + rows, "tiny on this machine", meta, cells, drafts)
    asked: list[tuple[str, str | None]] = []

    def measure(model: str, spec_model: str | None) -> Passes:
        asked.append((model, spec_model))
        return measured

    monkeypatch.setattr("foredraft.cli.plan_measure.measured_passes", measure)
    assert json.loads(run("tiny", "--measure", "--json")) == {"meta": meta, "cells": [*cells, *drafts]}
    printed = run("tiny", "--measure", "--spec-model", "a-head", "--batch", "1")
    assert asked == [("tiny", None), ("tiny", "a-head")]
    assert "tiny on this machine" in printed
    assert "3.00" in printed
    lines = {line.split()[0]: line for line in printed.splitlines() if line.strip()}
    assert lines["ngram"].split() == ["ngram", "0.100", "8", "8", "0.250", "0.677"]
    assert lines["lazy"].split(maxsplit=1)[1].strip() == "found none"
    assert lines["slow"].split()[-1] == "never"


@pytest.mark.slow
def test_measure_times_a_real_model(run: Run, tmp_path: Path) -> None:
    from checkpoints import write_folder

    folder = write_folder(tmp_path / "model", max_position_embeddings=2048, vocab_size=128)
    answer = json.loads(run(folder, "--measure", "--json"))
    assert answer["meta"]["weight_format"] == "float32"
    passes = [cell for cell in answer["cells"] if cell["kind"] == "pass"]
    drafts = {cell["method"]: cell for cell in answer["cells"] if cell["kind"] == "draft"}
    assert len(passes) + len(drafts) == len(answer["cells"])
    assert all(cell["pass_ms"] > 0 for cell in passes)
    assert {1, 8} <= {cell["rows"] for cell in passes}
    assert list(drafts) == ["ngram", "suffix", "recycling", "lookahead"]
    assert drafts["ngram"]["draft_cost"] > 0


def test_open_puts_the_numbers_into_the_address(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address) or 1))
    run("--acceptance", 0.5, "--draft-length", 2, "--draft-cost", 0.05, "--open")
    assert opened == [(page_directory() / "index.html").as_uri() + "#a=0.5&g=2&c=0.05"]


def test_no_browser_is_no_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert json.loads(run("--open", "--json"))["draft_length"] == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--acceptance", 1.5), "acceptance is 1.5"),
        (("--acceptance", "nan"), "acceptance is nan"),
        (("--draft-length", -1), "draft length is -1"),
        (("--draft-length", 100000), "from 0 to 256"),
        (("--draft-cost", -0.1), "draft cost is -0.1"),
        (("--batch", "1,many"), "'many'"),
        (("--batch", "0"), "'0'"),
        (("--batch", "1", "--context", -5), "context is -5"),
        (("--machine", "toaster"), "toaster"),
        (("--shape", "gpt-9"), "gpt-9"),
        (("--measure",), "name one"),
        (("some-model",), "add --measure"),
        (("--spec-model", "a-head"), "spec_model is 'a-head'"),
        (("--profile", "no-such-file.json"), "no-such-file.json"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(run: Run, arguments: tuple[object, ...], words: str) -> None:
    said = run(*arguments, code=2)
    assert words in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("content", ["{nope", "[]", '{"cells": [1]}', '{"cells": []}', '{"cells": [{"kind": "pass"}]}'])
def test_a_malformed_profile_is_one_sentence(run: Run, tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert len(run("--profile", path, code=2).strip().splitlines()) == 1


def test_the_page_is_complete() -> None:
    """Everything that index.html names is there, and nothing comes from elsewhere."""
    directory = page_directory()
    text = (directory / "index.html").read_text(encoding="utf-8")
    names = [part.split('"')[0] for mark in ('src="', 'href="') for part in text.split(mark)[1:]]
    local = [name for name in names if not name.startswith("#")]
    assert local
    assert not [name for name in local if not (directory / name).is_file()]
    for path in directory.rglob("*"):
        if path.suffix in {".js", ".css", ".html"} and "vendor" not in path.parts:
            content = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert "http" not in content, path
