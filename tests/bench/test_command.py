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
        (["offline", "-m", "guess"], "'guess' is unknown; use one of auto, draft_model"),
        (["offline", "-sc", '{"method": "ngram", "depth": 3}'], "'ngram' has no key 'depth'"),
        (["sweep", "--methods", "fixed:x"], "sweep method 'fixed:x' is unknown; use off, auto, or fixed:K"),
        (["sweep", "--spec-method", "guess"], "'guess' is unknown"),
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


def test_plain_decoding_of_a_dataset(tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"prompt": f"{category} {index}", "category": category} for category in "ab" for index in range(2)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    arguments = ["offline", str(tiny_checkpoint), "--dataset", str(path), "-m", "off", "--max-tokens", "4"]
    code, out, err = run(*arguments, "--num-prompts", "3", "--concurrency", "1,2", "--json", capsys=capsys)
    assert (code, err) == (0, "")
    report = json.loads(out)
    found = [(cell["workload"], cell["concurrency"], cell["num_prompts"]) for cell in report["cells"]]
    assert found == [(name, load, count) for load in (1, 2) for name, count in (("a", 2), ("b", 1), ("overall", 3))]
    assert report["meta"]["methods"] == {"off": None}
    assert report["meta"]["dataset"] == str(path)
    code, out, _ = run(*arguments, capsys=capsys)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["a", "off"], ["b", "off"], ["overall", "off"]]


def test_prompt_too_long_for_the_model(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("offline", str(tiny_checkpoint), "-w", "quote", "-m", "off", "--max-tokens", "50", capsys=capsys)
    assert code == 2
    assert "quote.jsonl line 1 has" in err
    assert "leaves room for 206 before the answer" in err
    code, _, err = run("offline", str(tiny_checkpoint), "-w", "chat", "-m", "off", "--max-tokens", "256", capsys=capsys)
    assert code == 2
    assert "max_tokens is 256, but" in err


@pytest.mark.parametrize("method", ["ngram", "auto"])
def test_methods_are_identical(
    method: str, tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "abcabcabc"}\n{"prompt": "hello"}\n')
    arguments = ["--temperature", "0", "--temperature", "1", "--max-tokens", "40", "--repeat", "2", "--json"]
    code, out, _ = run("offline", str(tiny_checkpoint), "--dataset", str(path), "-m", method, *arguments, capsys=capsys)
    assert code == 0
    cells = json.loads(out)["cells"]
    assert [(cell["method"], cell["temperature"], cell["identical"]) for cell in cells] == [
        (method, 0.0, True),
        (method, 1.0, True),
    ]


def test_sweep(tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "abcabcabc"}\n{"prompt": "hello"}\n')
    arguments = [
        "--methods",
        "off,fixed:2,auto",
        "--spec-method",
        "ngram",
        "--concurrency",
        "1,2",
        "--max-tokens",
        "20",
    ]
    code, out, _ = run(
        "sweep", str(tiny_checkpoint), "--dataset", str(path), *arguments, "--repeat", "1", "--json", capsys=capsys
    )
    assert code == 0
    report = json.loads(out)
    assert [(point["concurrency"], point["best_fixed_method"]) for point in report["summary"]] == [
        (1, "fixed:2"),
        (2, "fixed:2"),
    ]
    assert all(cell["identical"] for cell in report["cells"])


SIZES = ("--rows", "1,2", "--cached", "16", "--prefill", "32", "--repeat", "1")


def test_micro(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ("pass", "prefill", "sampling", "host")
    arguments = [argument for kind in kinds for argument in ("--kind", kind)]
    code, out, err = run("micro", str(tiny_checkpoint), *SIZES, *arguments, "--json", capsys=capsys)
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert list(dict.fromkeys(cell["kind"] for cell in report["cells"])) == list(kinds)
    assert report["meta"]["weight_format"] in ("float32", "bfloat16")


@pytest.mark.slow
def test_micro_starts_processes(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("micro", str(tiny_checkpoint), "--kind", "load", "--kind", "memory", "--json", capsys=capsys)
    assert (code, err) == (0, "")
    empty, filled, memory = json.loads(out)["cells"]
    assert [(cell["kind"], cell["cache"]) for cell in (empty, filled)] == [("load", "empty"), ("load", "filled")]
    assert empty["total_s"] > filled["total_s"] > filled["import_s"] + filled["load_s"] > 0
    assert memory["kind"] == "memory"
    assert 50 < memory["torch_mb"] < memory["decode_peak_mb"] < 4000
    assert memory["weights_mb"] > 0


def test_transformers_takes_its_turn(tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "hello"}\n')
    arguments = ["-m", "off", "--reference", "float32", "--max-tokens", "9", "--json"]
    code, out, _ = run("offline", str(tiny_checkpoint), "--dataset", str(path), *arguments, capsys=capsys)
    assert code == 0
    plain, reference = json.loads(out)["cells"]
    assert reference["method"] == "transformers float32"
    assert reference["identical"] is None
    assert reference["total_output_tokens"] == plain["total_output_tokens"] == 9
    assert reference["mean_tpot_ms"] > 0
    code, _, err = run("offline", "--reference", "float32", "--temperature", "1", capsys=capsys)
    assert code == 2
    assert "--reference float32 decodes greedily" in err
