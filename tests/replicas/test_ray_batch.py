"""`foredraft batch --ray`: on two engines of a local cluster the file is the one that a single engine writes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foredraft.engine.llm import LLM
from foredraft.engine.open_target import EngineArgs
from foredraft.errors import ConfigError, LoadError
from foredraft.ray.arguments import Described, Replicas
from foredraft.server.app import create_service
from foredraft.server.batch import local_batch
from foredraft.server.batch_file import AnswerFile
from foredraft.server.model_spec import ModelSpec
from foredraft.server.settings import ServerSettings

pytest.importorskip("ray.data")

from local_ray import local_ray  # it needs ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
DRAFTING = {"method": "prediction", "controller": "off", "num_speculative_tokens": 6}
VOLATILE = ("id", "created", "system_fingerprint", "usage")
COUNT = 100
POISON = "This prompt kills."


def line(name: str, url: str, **body: Any) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {"model": "tiny", **body}})


def requests() -> list[str]:
    """Of many kinds and lengths; some are refused, one is no request, one has half a surrogate pair."""
    lines = [
        line(f"number {i}", TEXT, prompt=f"Number {i}", max_tokens=1 + 37 * (i % 5), temperature=1, seed=i)
        for i in range(COUNT)
    ]
    lines[3] = "nonsense"
    lines[10] = line("chat", CHAT, messages=[{"role": "user", "content": "Hi"}], max_tokens=20)
    lines[30] = line("refused", TEXT, prompt="x", temperature=-1)
    lines[50] = line("half", TEXT, prompt="\ud800")
    lines[70] = line("number 2", TEXT, prompt="the same name again")
    return lines


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("requests") / "in.jsonl"
    path.write_text("\n".join(requests()) + "\n")
    return path


@pytest.fixture(scope="module")
def described(tiny_checkpoint: Path) -> Described:
    args = EngineArgs(model=str(tiny_checkpoint), dtype="float64", max_num_seqs=2)
    settings = ServerSettings(model_names=("tiny",), max_queue=1 << 20, log_stats=False)
    return Described(ModelSpec(args, DRAFTING), settings, Replicas(replicas=2, num_cpus=1))


@pytest.fixture(scope="module")
def expected(described: Described, source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What one engine in this process answers."""
    path = tmp_path_factory.mktemp("local") / "out.jsonl"
    service = create_service(described.spec.load, described.settings, method=described.spec.method)
    with AnswerFile.open(path) as answers:
        local_batch(service, source, answers, concurrency=2)
    return bare(path)


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with local_ray(tmp_path_factory.getbasetemp() / "cache"):
        yield


def bare(path: Path) -> list[Any]:
    """Results without what depends on the moment."""
    found = []
    for text in path.read_text().splitlines():
        result = json.loads(text)
        response = result["response"] or {"status_code": None, "body": {}}
        body = {key: value for key, value in response["body"].items() if key not in VOLATILE}
        found.append((result["custom_id"], result["error"], response["status_code"], body))
    return found


def run(described: Described, source: Path, out: Path, progress: Callable[[int], None] = lambda done: None) -> None:
    from foredraft.ray.batch import ray_batch

    with AnswerFile.open(out) as answers:
        ray_batch(described, source, answers, progress=progress)


def engines() -> list[int]:
    """Processes of the actors."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::") and b"Map" in name:
            found.append(int(folder.name))
    return found


@pytest.mark.usefixtures("_cluster")
def test_the_file_is_the_one_of_a_single_engine(
    described: Described, source: Path, expected: list[Any], tmp_path: Path
) -> None:
    steps: list[int] = []
    run(described, source, tmp_path / "out.jsonl", steps.append)
    assert bare(tmp_path / "out.jsonl") == expected
    assert len(expected) == COUNT
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, COUNT)
    assert len(steps) > 5, "answers are written as they come"


@pytest.mark.usefixtures("_cluster")
def test_an_engine_that_dies_costs_nothing(
    described: Described, source: Path, expected: list[Any], tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill_one(done: int) -> None:
        if done and not killed:
            killed.append(min(engines()))
            os.kill(killed[0], signal.SIGKILL)

    run(described, source, tmp_path / "out.jsonl", kill_one)
    assert killed
    assert bare(tmp_path / "out.jsonl") == expected


class PoisonedSpec(ModelSpec):
    """Its engines die of a prompt."""

    def load(self) -> LLM:
        llm = super().load()
        poison, step = llm.tokenizer.encode(POISON), llm.engine.step

        def stumble() -> Any:
            if any(sequence.tokens[: len(poison)] == poison for sequence in llm.engine.scheduler.running):
                os.kill(os.getpid(), signal.SIGKILL)
            return step()

        llm.engine.step = stumble  # type: ignore[method-assign]
        return llm


@pytest.mark.usefixtures("_cluster")
def test_a_request_that_ends_every_engine_ends_the_batch(described: Described, source: Path, tmp_path: Path) -> None:
    """After a few attempts; what came before it is answered."""
    lines = source.read_text().splitlines()
    lines[60] = line("poison", TEXT, prompt=POISON)
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    poisoned = described._replace(spec=PoisonedSpec(described.spec.args, DRAFTING))
    with pytest.raises(LoadError, match=r"^The batch could not go on \(.*\); run it again") as raised:
        run(poisoned, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert "\n" not in str(raised.value)
    assert len(bare(tmp_path / "out.jsonl")) <= 60


@pytest.mark.usefixtures("_cluster")
def test_a_batch_goes_on_where_it_was_interrupted(
    described: Described, source: Path, expected: list[Any], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"

    def interrupt(done: int) -> None:
        if done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(described, source, out, interrupt)
    kept = out.read_bytes()
    assert bare(out) == expected[: kept.count(b"\n")]
    assert 20 < kept.count(b"\n") < COUNT
    out.write_bytes(kept + b'{"id": "torn')
    run(described, source, out)
    assert out.read_bytes().startswith(kept)
    assert bare(out) == expected
    (tmp_path / "other.jsonl").write_text(line("other", TEXT, prompt="x") + "\n")
    with pytest.raises(ConfigError, match="belongs to the custom_id"):
        run(described, tmp_path / "other.jsonl", out)


@pytest.mark.usefixtures("_cluster")
def test_a_model_that_cannot_be_loaded(described: Described, source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    spec = ModelSpec(EngineArgs(model=str(tmp_path / "empty")), DRAFTING)
    with pytest.raises(LoadError, match=r"^The batch could not go on \(.*empty.*\); run it again") as raised:
        run(described._replace(spec=spec), source, tmp_path / "out.jsonl")
    assert "\n" not in str(raised.value)
    assert (tmp_path / "out.jsonl").read_bytes() == b""


@pytest.mark.usefixtures("_cluster")
def test_the_command(
    described: Described, source: Path, expected: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from foredraft.cli.main import main

    flags = ["--model", described.spec.args.model, "--served-model-name", "tiny", "--dtype", "float64"]
    with pytest.raises(SystemExit) as ended:
        main(["batch", str(source), str(tmp_path / "out.jsonl"), "--ray", "--replicas", "2", *flags])
    assert ended.value.code == 1  # some answers are errors
    assert f"{COUNT} lines answered" in capsys.readouterr().err
    assert bare(tmp_path / "out.jsonl") == expected
