"""`foredraft batch`: the same answers as over HTTP, one a line, in order, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tiny_server import load_tiny, tiny_service

from foredraft.errors import ConfigError
from foredraft.server.batch import answer_in_order, local_batch
from foredraft.server.batch_file import AnswerFile, BatchLine, read_lines

COMMAND = [sys.executable, "-c", "from foredraft.cli.main import main; main()", "batch"]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
VOLATILE = ("id", "created")


def line(name: str, url: str, **body: Any) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {"model": "tiny", **body}})


def chat(name: str, text: str, **more: Any) -> str:
    return line(name, CHAT, messages=[{"role": "user", "content": text}], max_tokens=12, **more)


def requests() -> list[str]:
    """Requests of many kinds; some of them are refused."""
    return [
        chat("greedy", "Hello"),
        chat("drawn", "Hello", temperature=1, seed=7, n=2),
        line("text", TEXT, prompt="The quick", max_tokens=20, logprobs=2, temperature=0),
        line("echo", TEXT, prompt=["a", "b c"], max_tokens=5, echo=True, temperature=0),
        chat("other model", "Hi").replace('"tiny"', '"large"'),
        chat("bad field", "Hi", temperature=-1),
        chat("predicted", "Again: abc", prediction={"type": "content", "content": "abc abc abc"}),
        *(line(f"many {i}", TEXT, prompt=f"Number {i}", max_tokens=1 + 7 * (i % 5), temperature=0) for i in range(15)),
    ]


def run(tmp_path: Path, checkpoint: Path, lines: list[str], *, out: str = "out.jsonl") -> list[dict[str, Any]]:
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines) + "\n")
    service = tiny_service(lambda: load_tiny(checkpoint), max_queue=1000)
    with AnswerFile.open(tmp_path / out) as answers:
        local_batch(service, source, answers, concurrency=4)
    return results(tmp_path / out)


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def stable(body: dict[str, Any]) -> Any:
    """Without what depends on the moment: ids, times, and how much of a prompt happened to be cached."""
    kept = {key: value for key, value in body.items() if key not in VOLATILE}
    if "usage" in kept:
        kept["usage"] = {key: value for key, value in kept["usage"].items() if key != "prompt_tokens_details"}
    return rounded(kept)


def rounded(value: Any) -> Any:
    """Log-probabilities depend on what else is in the batch, by the last bits of float64."""
    if isinstance(value, float):
        return round(value, 9)
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else value


def test_bodies_are_those_of_the_server(tmp_path: Path, tiny_checkpoint: Path, client: TestClient) -> None:
    lines = requests()
    got = run(tmp_path, tiny_checkpoint, lines)
    assert [result["custom_id"] for result in got] == [json.loads(text)["custom_id"] for text in lines]
    for text, result in zip(lines, got, strict=True):
        asked = json.loads(text)
        over_http = client.post(asked["url"], json=asked["body"])
        response = result["response"]
        expected = stable(over_http.json())
        expected.pop("metrics", None)  # that server reports speculation
        assert (response["status_code"], stable(response["body"])) == (over_http.status_code, expected)
        assert result["error"] is None
        assert response["request_id"]
        assert response["status_code"] != 200 or response["body"]["id"].endswith(response["request_id"])
    statuses = {result["custom_id"]: result["response"]["status_code"] for result in got}
    assert (statuses["other model"], statuses["bad field"], statuses["greedy"]) == (404, 400, 200)
    assert len({result["id"] for result in got}) == len(got)
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "no JSON object"),
        ('{"method": "POST"}', "no custom_id"),
        (chat("first", "x"), "of an earlier line"),
        (chat("x", "x").replace("POST", "GET"), '"GET"'),
        (line("x", "/v1/embeddings"), '"/v1/embeddings"'),
        ('{"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": 3}', "no body"),
        (chat("x", "x", stream=True), "stream"),
        ("\udcff".join(("{", "}")), "not valid JSON"),
    ],
)
def test_bad_lines(tmp_path: Path, bad: str, said: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes("\n".join([chat("first", "a"), bad, "", chat("last", "b")]).encode("utf-8", "surrogateescape"))
    lines = list(read_lines(path))
    assert [entry.problem is None for entry in lines] == [True, False, True]
    assert said in (lines[1].problem or "")
    assert (lines[1].problem or "").startswith("Line 2 ")
    assert lines[2].number == 4


def test_bad_lines_are_answered_and_the_rest_goes_on(tmp_path: Path, tiny_checkpoint: Path) -> None:
    got = run(tmp_path, tiny_checkpoint, [chat("a", "x"), "{", chat("a", "y"), chat("b", "z")])
    assert [result["custom_id"] for result in got] == ["a", None, "a", "b"]
    assert [result["response"] is None for result in got] == [False, True, True, False]
    assert [result["error"]["code"] for result in got[1:3]] == ["invalid_line"] * 2


@pytest.mark.parametrize("torn", ["", '{"id": "x", "cust', '{"id": "x", "custom_id": "many 3", "response"'])
def test_resume(tmp_path: Path, tiny_checkpoint: Path, torn: str) -> None:
    """What is there stays as it is, to the byte; a torn line is written again."""
    whole = run(tmp_path, tiny_checkpoint, requests())
    kept = "".join(json.dumps({**result, "id": f"kept {i}"}) + "\n" for i, result in enumerate(whole[:9]))
    (tmp_path / "again.jsonl").write_text(kept + torn)
    again = run(tmp_path, tiny_checkpoint, requests(), out="again.jsonl")
    assert (tmp_path / "again.jsonl").read_text().startswith(kept)
    assert [bare(result) for result in again] == [bare(result) for result in whole]


def bare(result: dict[str, Any]) -> tuple[Any, ...]:
    response = result["response"]
    return result["custom_id"], result["error"], response["status_code"], stable(response["body"])


def test_answers_of_another_batch_are_left_alone(tmp_path: Path) -> None:
    from foredraft.server.batch_file import remaining_lines

    source = tmp_path / "in.jsonl"
    source.write_text(chat("a", "x") + "\n")
    with pytest.raises(ConfigError, match="'b'"):
        remaining_lines(source, ["b"])
    with pytest.raises(ConfigError, match="ends before"):
        remaining_lines(source, ["a", "b"])
    for text in ("a key without an end", "precious\n", "precious\nthings\n", '{"custom_id": "a"}\n{"a": 1}\n', "3\n"):
        other = tmp_path / "other"
        other.write_text(text)
        with pytest.raises(ConfigError, match=r"Line \d of .* is no answer"), AnswerFile.open(other):
            pass
        assert other.read_text() == text


def test_one_writer(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with AnswerFile.open(out):
        with pytest.raises(ConfigError, match="another batch"), AnswerFile.open(out):
            pass
        with pytest.raises(ConfigError, match="another batch"), AnswerFile.open(out):
            pass
    with AnswerFile.open(out):
        pass


def test_order_and_bounds() -> None:
    """Answers come in order however long each takes, and only so many are being made or wait."""
    running = most = finished = written = waited = 0

    async def answer(entry: BatchLine) -> dict[str, Any]:
        nonlocal running, most, finished, waited
        running += 1
        most = max(most, running)
        for _ in range(400 if entry.number == 1 else entry.number % 7):
            await asyncio.sleep(0)
        running -= 1
        finished += 1
        waited = max(waited, finished - written)
        return {"n": entry.number}

    async def collect() -> list[int]:
        nonlocal written
        got = []
        lines = (BatchLine(i, str(i), TEXT, {}) for i in range(1, 100))
        async for group in answer_in_order(lines, answer, concurrency=3):
            written += len(group)
            got += [result["n"] for result in group]
        return got

    assert asyncio.run(collect()) == list(range(1, 100))
    assert most == 3
    assert 3 < waited <= 12


def test_killed_and_run_again(
    tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """kill -9 in the middle; in the end the file is the one that an undisturbed run writes."""
    from foredraft.cli.main import main

    lines = [line(str(i), TEXT, prompt=f"Line {i}", max_tokens=60, temperature=1, seed=i) for i in range(40)]
    lines.insert(20, "nonsense")
    calm = [comparable(result) for result in run(tmp_path, tiny_checkpoint, lines, out="calm.jsonl")]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    flags = ["--model", str(tiny_checkpoint), "--served-model-name", "tiny", "--served-model-name", "also-tiny"]
    arguments = [str(source), str(out), *flags, "--dtype", "float64", "--max-num-seqs", "4"]
    cache = str(tmp_path_factory.getbasetemp() / "cache")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FOREDRAFT_CACHE": cache}
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True, env=environment)
    while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < 8):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    _, log = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL, log
    kept = out.read_bytes()
    assert 8 <= kept.count(b"\n") < 41
    out.write_bytes(kept + b'{"id": "torn')

    with pytest.raises(SystemExit) as ended:
        main(["batch", *arguments])
    assert ended.value.code == 1  # one line was no request
    said = capsys.readouterr()
    assert re.search(r"^41 lines answered · \d+ of them earlier · 1 error · ", said.err, re.MULTILINE)
    assert said.out == ""
    assert out.read_bytes().startswith(kept)
    assert [comparable(result) for result in results(out)] == calm

    whole = out.read_bytes()
    with pytest.raises(SystemExit) as ended:  # nothing is left to do, so the model isn't needed
        main(["batch", str(source), str(out), "--model", "/nowhere"])
    assert ended.value.code == 1
    assert out.read_bytes() == whole


def comparable(result: dict[str, Any]) -> Any:
    return (result["custom_id"], result["error"]) if result["error"] else bare(result)


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "can't be read"), ("{}\n", "give --model"), (chat("a", "x").replace('"tiny"', '"/nowhere"'), "/nowhere")],
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str) -> None:
    from foredraft.cli.main import main

    source = tmp_path / "in.jsonl"
    if text is not None:
        source.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["batch", str(source), str(tmp_path / "out.jsonl"), "--offline"])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in error
    assert error.count("\n") == 1


def test_an_empty_file_has_no_answers(tmp_path: Path) -> None:
    from foredraft.cli.main import main

    (tmp_path / "in.jsonl").write_text("\n")
    with pytest.raises(SystemExit) as ended:
        main(["batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")])
    assert not ended.value.code
    assert (tmp_path / "out.jsonl").read_text() == ""
