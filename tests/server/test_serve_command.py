"""`foredraft serve` as a process: start, answers, signals; and its flags."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

COMMAND = [sys.executable, "-c", "from foredraft.cli.main import main; main()", "serve"]
QUICK = ("--enforce-eager", "-sc", '{"method": "ngram", "controller": "off"}')
"""Nothing is compiled or measured at the start."""
ADDRESS = re.compile(r"Listening on (http://\S+:\d+)")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache of the user's."""
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


class Process:
    """A server process; its log is read as it comes."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )
        self.log = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line

    def wait_for(self, pattern: str, seconds: float = 120) -> re.Match[str]:
        limit = time.monotonic() + seconds
        while (found := re.search(pattern, self.log)) is None:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < limit, self.log
            time.sleep(0.02)
        return found

    def end(self, seconds: float = 30) -> int:
        code = self.process.wait(seconds)
        self._reader.join()
        return code


@contextmanager
def serving(*arguments: object, **environment: str) -> Iterator[tuple[Process, str]]:
    process = Process(*arguments, *QUICK, "--port", 0, **environment)
    try:
        address = process.wait_for(ADDRESS.pattern)[1]
        process.wait_for("Ready: ")
        yield process, address
    finally:
        if process.process.poll() is None:
            process.process.kill()
        process.end()


def get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return json.load(answer)


def test_it_serves_and_sigterm_lets_it_finish(tiny_checkpoint: Path) -> None:
    with serving(tiny_checkpoint, "--served-model-name", "tiny", FOREDRAFT_API_KEY="k") as (process, address):
        assert get(f"{address}/health") == {"status": "ok"}
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0)
        fields: dict[str, Any] = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 150,
            "temperature": 0,
        }
        whole = client.chat.completions.create(**fields).choices[0].message.content
        stream = client.chat.completions.create(**fields, stream=True)
        text = next(iter(stream)).choices[0].delta.content or ""
        process.process.send_signal(signal.SIGTERM)
        text += "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole
        assert process.end() == 0
        access = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
        assert [entry["status"] for entry in access] == [200, 200, 200]
        assert "Traceback" not in process.log


def test_ctrl_c(tiny_checkpoint: Path) -> None:
    with serving(tiny_checkpoint) as (process, _):
        process.process.send_signal(signal.SIGINT)
        assert process.end() == 130
        assert "Traceback" not in process.log


def test_a_model_that_cannot_be_loaded_ends_it(tmp_path: Path) -> None:
    process = Process(tmp_path, "--port", 0)
    assert process.end(120) == 2
    assert re.search(r"^Error: .*\.$", process.log, re.MULTILINE), process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "port is 70000"),
        (["--max-queue", "-1"], "max_queue is -1"),
        (["--metrics-namespace", "x"], "metrics_namespace"),
        (["--override-generation-config", "{"], "--override-generation-config"),
        (["--override-generation-config", '{"beams": 4}'], "beams"),
        (["--allowed-origins", "*"], "--allowed-origins"),
        (["--api-key-file", "/nowhere"], "/nowhere"),
        (["--chat-template", "/nowhere"], "/nowhere"),
        (["--ssl-keyfile", "/nowhere"], "--ssl-certfile"),
        (["-sc", '{"method": "psychic"}'], "psychic"),
        (["--uvicorn-log-level", "loud"], "loud"),
        (["--config", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_flags(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    from foredraft.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["serve", str(tiny_checkpoint), *arguments])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in error
    assert error.count("\n") == 1


def test_config_file(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Flags win over the environment, which wins over the file."""
    config = tmp_path / "serve.yaml"
    config.write_text(
        f"model: {tiny_checkpoint}\nserved-model-name: [from-file, other]\nmax_logprobs: 3\nport: 1\n"
        "override-generation-config: {temperature: 0, max_new_tokens: 5}\n"
    )
    with serving("--config", config, FOREDRAFT_HOST="localhost") as (_, address):
        assert [model["id"] for model in get(f"{address}/v1/models")["data"]] == ["from-file", "other"]
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        answer = client.chat.completions.create(model="other", messages=[{"role": "user", "content": "Hi"}])
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5
        with pytest.raises(openai.BadRequestError, match="from 0 to 3"):
            client.completions.create(model="other", prompt="Hi", logprobs=4)


def test_config_file_with_unknown_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from foredraft.cli.main import main

    config = tmp_path / "serve.yaml"
    config.write_text("modle: x\n")
    with pytest.raises(SystemExit):
        main(["serve", "--config", str(config)])
    assert "'modle'" in capsys.readouterr().err
