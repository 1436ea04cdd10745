"""Two replicas on a local Ray cluster: the answers are the plain ones, and a replica that is killed is replaced."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from foredraft.engine.llm import LLM
from foredraft.types import SamplingParams

ray = pytest.importorskip("ray")
pytest.importorskip("ray.serve")
httpx2 = pytest.importorskip("httpx2")

from local_ray import local_ray  # noqa: E402  # it needs ray

from foredraft.ray.application import build_application  # noqa: E402
from foredraft.ray.arguments import Described, read_arguments  # noqa: E402
from foredraft.ray.run import APPLICATION, deployed  # noqa: E402
from foredraft.server.run import Listening  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SECONDS = 240.0
REQUESTS = 60


class Cluster(NamedTuple):
    """A deployed application: an HTTP client for it, and the handle of its replicas."""

    client: Any
    engine: Any

    def pids(self) -> set[int]:
        """Processes of the replicas that answer; enough questions to meet both."""
        found: set[int] = set()
        for _ in range(12):
            try:
                found.add(self.engine.pid.remote().result(timeout_s=30))
            except (ray.exceptions.RayActorError, TimeoutError):
                time.sleep(0.2)
        return found

    def settled(self) -> set[int]:
        """The replicas' processes, when there are two of them."""
        wait_until(lambda: len(self.pids()) == 2)
        return self.pids()


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.2)


def described_by(checkpoint: Path, **more: Any) -> Described:
    """The arguments of a YAML file."""
    arguments = {
        "model": str(checkpoint),
        "served_model_name": "tiny",
        "dtype": "float64",
        "max_num_seqs": 4,
        "num_cpus": 0.5,
        "shutdown_timeout": 20,
    }
    return read_arguments({**arguments, **more})


@pytest.fixture(scope="module")
def cluster(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    described = described_by(tiny_checkpoint, replicas=2)
    with local_ray(tmp_path_factory.getbasetemp() / "cache"):
        try:
            with (
                deployed(described, Listening(port=port)),
                httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS) as client,
            ):
                yield Cluster(client, serve.get_deployment_handle("engine", APPLICATION))
        finally:
            serve.shutdown()


@pytest.fixture(scope="module")
def plain(tiny_checkpoint: Path) -> Callable[[str, int], str]:
    """The plain decoder's answer."""
    llm = LLM(str(tiny_checkpoint), dtype="float64", max_num_seqs=4)

    def answer(prompt: str, count: int) -> str:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        return llm.generate(prompt, params)[0].outputs[0].text

    return answer


def text_body(prompt: str, count: int, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, **more}


def events(lines: Iterator[str]) -> list[Any]:
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def joined(chunks: list[Any]) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk.get("choices"))


def test_answers_are_the_plain_ones(cluster: Cluster, plain: Callable[[str, int], str]) -> None:
    assert cluster.client.get("/health").json() == {"status": "ok"}
    for number in range(4):
        got = cluster.client.post(TEXT, json=text_body(f"{number} times", 40))
        assert got.status_code == 200
        assert got.json()["choices"][0]["text"] == plain(f"{number} times", 40)
        assert got.headers["x-request-id"]


def test_a_stream_comes_in_pieces_as_it_is_decoded(cluster: Cluster, plain: Callable[[str, int], str]) -> None:
    times = []
    lines = []
    with cluster.client.stream("POST", TEXT, json=text_body("A stream", 150, stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            times.append(time.monotonic())
            lines.append(line)
    assert joined(events(iter(lines))) == plain("A stream", 150)
    assert lines[-1] == "" or "[DONE]" in lines[-1]
    assert len({round(moment, 3) for moment in times}) > 5


def test_errors_pass_through(cluster: Cluster) -> None:
    assert cluster.client.post(TEXT, json={**text_body("x", 3), "model": "other"}).status_code == 404
    assert cluster.client.post(TEXT, json={**text_body("x", 3), "temperature": -1}).status_code == 400
    assert cluster.client.get("/nothing").json()["error"]["type"] == "not_found_error"
    assert cluster.client.post(TEXT, content=b"x" * (9 * 2**20)).status_code == 413


def test_a_client_that_leaves_frees_its_place(cluster: Cluster) -> None:
    """The replicas' own counts of what they decode go back to zero long before the answers would have been done."""
    handle = cluster.engine
    for number in range(3):
        with cluster.client.stream("POST", TEXT, json=text_body(f"Leave {number}", 230, stream=True)) as response:
            next(response.iter_lines())
    wait_until(lambda: all(handle.open_sequences.remote().result(timeout_s=30) == 0 for _ in range(8)))


def test_metrics_are_those_of_all_replicas(cluster: Cluster) -> None:
    cluster.settled()

    def tokens() -> dict[str, float]:
        families = text_string_to_metric_families(cluster.client.get("/metrics").text)
        [family] = [family for family in families if family.name == "foredraft_generation_tokens"]
        return {sample.labels["engine"]: sample.value for sample in family.samples if sample.name.endswith("_total")}

    before = tokens()
    for number in range(4):
        assert cluster.client.post(TEXT, json=text_body(f"Count {number}", 25)).status_code == 200
    assert len(before) == 2
    wait_until(lambda: sum(tokens().values()) - sum(before.values()) == 100)


def test_killed_under_load(cluster: Cluster, plain: Callable[[str, int], str]) -> None:
    """kill -9 of a replica: whole answers all arrive; a stream is whole, or ends with an error that says why."""
    before = cluster.settled()
    outcomes: dict[int, Any] = {}
    answered = threading.Semaphore(0)

    def ask(number: int) -> None:
        body = text_body(f"{number} under load", 200, stream=number % 2 == 0)
        if number % 2:
            outcomes[number] = cluster.client.post(TEXT, json=body)
        else:
            with cluster.client.stream("POST", TEXT, json=body) as response:
                outcomes[number] = (response.status_code, list(response.iter_lines()))
        answered.release()

    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(ask, number) for number in range(REQUESTS)]
        for _ in range(REQUESTS // 3):  # now both replicas are in the middle of several answers
            assert answered.acquire(timeout=SECONDS)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        for future in asked:
            future.result(SECONDS)
    assert len(outcomes) == REQUESTS
    broken = 0
    for number, outcome in outcomes.items():
        expected = plain(f"{number} under load", 200)
        if number % 2:
            assert (outcome.status_code, outcome.json()["choices"][0]["text"]) == (200, expected)
            continue
        status, lines = outcome
        chunks = events(iter(lines))
        assert status == 200
        assert "data: [DONE]" in lines
        if "error" in chunks[-1]:
            broken += 1
            assert chunks[-1]["error"]["code"] == "replica_died"
            assert "died" in chunks[-1]["error"]["message"]
            assert expected.startswith(joined(chunks))
        else:
            assert joined(chunks) == expected
    assert broken
    after = cluster.settled()
    assert victim not in after
    assert len(after & before) == 1
    assert cluster.client.post(TEXT, json=text_body("After", 20)).json()["choices"][0]["text"] == plain("After", 20)


def test_a_new_version_rolls_out_under_load(
    cluster: Cluster, tiny_checkpoint: Path, plain: Callable[[str, int], str]
) -> None:
    """Deploying changed arguments replaces both replicas; no request fails, and no stream is cut."""
    before = cluster.settled()
    rolled_out = threading.Event()
    outcomes: list[tuple[int, int, str]] = []

    def ask(worker: int) -> None:
        number = worker
        while not rolled_out.is_set() or number < 200:
            body = text_body(f"{number} in turn", 120, stream=worker % 2 == 0)
            if worker % 2:
                got = cluster.client.post(TEXT, json=body)
                outcomes.append((number, got.status_code, got.json()["choices"][0]["text"] if got.is_success else ""))
            else:
                with cluster.client.stream("POST", TEXT, json=body) as response:
                    outcomes.append((number, response.status_code, joined(events(response.iter_lines()))))
            number += 100

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, worker) for worker in range(4)]
        try:
            changed = described_by(tiny_checkpoint, replicas=2, max_queue=100)
            ray.serve.run(build_application(*changed), name=APPLICATION, blocking=False)
            wait_until(lambda: len(after := cluster.settled()) == 2 and not after & before)
        finally:
            rolled_out.set()
        for future in asked:
            future.result(SECONDS)
    assert len(outcomes) >= 8
    for number, status, text in outcomes:
        assert (number, status, text) == (number, 200, plain(f"{number} in turn", 120))


def test_load_brings_a_second_replica(cluster: Cluster, tiny_checkpoint: Path) -> None:
    """autoscale 1:2, as an application beside the other, below a prefix."""
    scaled = described_by(tiny_checkpoint, autoscale="1:2", max_num_seqs=2)
    ray.serve.run(build_application(*scaled), name="scaled", route_prefix="/scaled", blocking=False)
    own = Cluster(cluster.client, ray.serve.get_deployment_handle("engine", "scaled"))
    full = threading.Event()

    def ask(worker: int) -> set[int]:
        statuses = set()
        while not full.is_set():
            body = text_body(f"{worker} waits", 200)
            statuses.add(cluster.client.post(f"/scaled{TEXT}", json=body).status_code)
        return statuses

    try:
        assert len(own.pids()) == 1
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, worker) for worker in range(8)]
            try:
                wait_until(lambda: len(own.pids()) == 2)
            finally:
                full.set()
            assert set().union(*(future.result(SECONDS) for future in asked)) == {200}
        metrics = cluster.client.get("/scaled/metrics").text
        assert len(set(re.findall(r'num_requests_running\{engine="([^"]+)"', metrics))) == 2
    finally:
        ray.serve.delete("scaled")
