"""Reading prompts: every shape, and one clear sentence for whatever is wrong."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from foredraft.bench.datasets import read_dataset
from foredraft.bench.workloads import WORKLOADS, choose, own_prompts
from foredraft.errors import ConfigError

SHAPES = {
    "spec_bench": (
        {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Shorten it."]},
        "Compose a post.",
    ),
    "edit_eval": (
        {"task_id": "E/0", "instruction": "Add a check. ", "context": "", "input": "x = 1", "output": "x = 2"},
        "Add a check.\n\nx = 1",
    ),
    "human_eval": (
        {"task_id": "H/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "    pass", "test": ""},
        "Complete the function.\n\ndef f():\n",
    ),
    "gsm8k": ({"question": "How many?", "answer": "Two.\n#### 2"}, "How many?"),
    "chat": (
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Why?"},
                {"role": "assistant", "content": "So."},
            ]
        },
        "Why?",
    ),
    "plain": ({"prompt": "Say hello."}, "Say hello."),
}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SHAPES)
def test_shape_is_recognised(name: str, tmp_path: Path) -> None:
    row, asked = SHAPES[name]
    [prompt] = read_dataset(write(tmp_path / f"{name}.jsonl", row))
    assert prompt.messages[-1] == {"role": "user", "content": asked}
    assert prompt.category == row.get("category", name)
    assert prompt.prediction == (row["input"] if name == "edit_eval" else None)
    assert prompt.source == f"{name}.jsonl line 1"


def test_plain_shape_carries_category_and_prediction(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", {"prompt": "Fix it: ab", "category": "fix", "prediction": "ab"})
    [prompt] = read_dataset(path)
    assert (prompt.category, prompt.prediction) == ("fix", "ab")


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('\n{"prompt": "one"}\n\n{"prompt": "two"}\n')
    assert [prompt.source for prompt in read_dataset(path)] == ["own.jsonl line 2", "own.jsonl line 4"]


def test_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(SHAPES["human_eval"][0]).encode()))
    assert read_dataset(path)[0].category == "HumanEval"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("not json", "line 2, is not JSON"),
        ('["a", "list"]', r"line 2, is '\[\"a\", \"list\"\]'; each line must be one object"),
        ('{"text": "hi", "id": 3}', "line 2, has the keys text, id, which is no known shape; known are turns"),
        ("{}", "line 2, has the keys none"),
        ('{"prompt": 7}', "line 2, looks like plain, but prompt must hold"),
        ('{"prompt": "  "}', "line 2, looks like plain"),
        ('{"turns": []}', "line 2, looks like Spec-Bench, but turns must hold"),
        ('{"turns": "one"}', "line 2, looks like Spec-Bench"),
        ('{"messages": [{"role": "assistant", "content": "Hm."}]}', r"line 2, .* role user, and is \['assistant'\]"),
        ('{"messages": [{"role": "robot", "content": "Hm."}]}', r"line 2, .*messages\[0\].role .*, and is 'robot'"),
        ('{"messages": [{"role": "user"}]}', r"line 2, .*messages\[0\].content must hold a text, and is None"),
        ('{"messages": ["Hm."]}', r"line 2, .*messages\[0\] must hold an object .*, and is 'Hm\.'"),
        (
            '{"instruction": "do", "input": null}',
            "line 2, looks like EditEval, but input must hold a text",
        ),
        ('{"question": "?", "answer": "!", "prediction": 1}', "line 2, looks like GSM8K, but prediction .* and is 1"),
        ('{"prompt": "hi", "prediction": 7}', "line 2, looks like plain, but prediction must hold a text, and is 7"),
        (r'{"prompt": "\ud800 hi"}', r"line 2, .*prompt must hold whole characters.*'\\ud800'"),
        (r'{"prompt": "hi", "category": "\udfff"}', "line 2, .*category must hold whole characters"),
        ("[" * 100_000, "line 2, is not JSON"),
        ('{"prompt": ' + "1" * 5000 + "}", "line 2, is not JSON"),
    ],
)
def test_malformed_line_is_named(line: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=re.escape(str(path)) + ", " + complaint):
        read_dataset(path)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    for path, content in (
        (tmp_path / "missing.jsonl", None),
        (tmp_path / "latin.jsonl", '{"prompt": "Übung"}'.encode("latin-1")),
        (tmp_path / "torn.jsonl.gz", gzip.compress(b"x" * 100)[:-9]),
        (tmp_path / "fake.jsonl.gz", b"no gzip"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"{re.escape(str(path))} can't be read"):
            read_dataset(path)


def test_file_without_prompts(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match=r"empty\.jsonl has no prompts"):
        read_dataset(tmp_path / "empty.jsonl")


def test_own_prompts_are_plentiful_and_never_repeat() -> None:
    prompts = own_prompts()
    counts = {name: sum(prompt.category == name for prompt in prompts) for name in WORKLOADS}
    assert counts == {"chat": 32, "edit": 32, "quote": 16, "json": 40, "creative": 32}
    texts = [prompt.messages[-1]["content"] for prompt in prompts]
    assert len(set(texts)) == len(texts)
    edits = [prompt for prompt in prompts if prompt.category == "edit"]
    assert all(prompt.prediction and prompt.prediction in prompt.messages[-1]["content"] for prompt in edits)


def test_unknown_workload_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'maths' is unknown; use one of chat, edit, quote, json, creative"):
        own_prompts(["chat", "maths"])


def test_choice_takes_categories_in_turn(tmp_path: Path) -> None:
    rows = [{"prompt": f"{category} {number}", "category": category} for category in "ab" for number in range(3)]
    prompts = read_dataset(write(tmp_path / "own.jsonl", *rows, {"prompt": "c 0", "category": "c"}))

    def texts(**how: object) -> list[str]:
        return [prompt.messages[-1]["content"] for prompt in choose(prompts, **how)]  # type: ignore[arg-type]

    assert texts(num_prompts=4) == ["a 0", "a 1", "b 0", "c 0"]
    assert texts(num_prompts=6) == ["a 0", "a 1", "a 2", "b 0", "b 1", "c 0"]
    assert texts(num_prompts=99) == texts()
    assert texts(categories=["b"], num_prompts=2) == ["b 0", "b 1"]
    with pytest.raises(ConfigError, match=r"category 'd' is unknown; use one of a, b, c"):
        texts(categories=["b", "d"])
    with pytest.raises(ConfigError, match="num_prompts is 0"):
        texts(num_prompts=0)
