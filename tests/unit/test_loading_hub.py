"""Models on the hub: downloaded once, found without a network, and never a hang or a pickle."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from checkpoints import refusal, write_folder
from gguf_files import write_model
from safetensors.torch import load_file

from foredraft.target.loading import load_target, load_tokenizer


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as its client uses to list and download a repository."""

    repositories: dict[str, Path]
    requests: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.requests.append(self.path)
        path = self.path.partition("?")[0].strip("/")
        owner, name, *rest = path.removeprefix("api/models/").split("/")
        folder = self.repositories.get(f"{owner}/{name}")
        commit = hashlib.sha1(name.encode()).hexdigest()
        if name == "gated":
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif folder is None:
            self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif rest[:1] == ["resolve"]:
            content = (folder / rest[2]).read_bytes()
            self.answer(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit})
        elif rest[:1] == ["tree"]:
            entries = [
                {
                    "type": "file",
                    "path": file.name,
                    "size": file.stat().st_size,
                    "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
                }
                for file in folder.iterdir()
            ]
            self.answer(200, json.dumps(entries).encode())
        elif rest[:1] == ["revision"] and rest[1] not in ("main", commit):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            siblings = [{"rfilename": file.name} for file in folder.iterdir()]
            self.answer(200, json.dumps({"id": f"{owner}/{name}", "sha": commit, "siblings": siblings}).encode())

    def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("OneHub", (Hub,), {"repositories": {}, "requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            f"http://127.0.0.1:{server.server_port}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        )
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield handler
        server.shutdown()


def test_a_hub_model_is_downloaded_once_and_found_without_network(
    hub: type[Hub], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"never downloaded")
    hub.repositories["owner/tiny"] = folder
    loaded = load_target("owner/tiny")
    assert torch.equal(loaded.model.lm_head.weight, load_file(folder / "model.safetensors")["lm_head.weight"])
    assert loaded.name == "owner/tiny"
    assert not any("pytorch_model.bin" in request for request in hub.requests)
    hub.requests.clear()
    assert load_target("owner/tiny", offline=True).fingerprint == loaded.fingerprint
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_target("owner/tiny").fingerprint == loaded.fingerprint
    assert hub.requests == []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert load_target("owner/tiny").fingerprint == loaded.fingerprint


def test_the_tokenizer_of_a_hub_model_comes_without_its_weights(hub: type[Hub], folder: Path) -> None:
    hub.repositories["owner/tiny"] = folder
    assert load_tokenizer("owner/tiny").encode("b") == [4]
    assert not any("model.safetensors" in request for request in hub.requests)


def test_a_hub_repository_of_one_gguf_file(hub: type[Hub], tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    written = write_model(tmp_path / "remote" / "m.gguf")
    hub.repositories["owner/quantised"] = tmp_path / "remote"
    assert torch.equal(load_target("owner/quantised").model.lm_head.weight, written.expected.lm_head.weight)
    shutil.copy(written.path, tmp_path / "remote" / "other.gguf")
    assert "has 2 .gguf files" in refusal("owner/quantised")


def test_hub_refusals(hub: type[Hub], folder: Path, tmp_path: Path) -> None:
    hub.repositories["owner/tiny"] = folder
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    hub.repositories |= {"owner/pickled": tmp_path / "pickled", "owner/empty": tmp_path / "empty"}
    assert "no model on the hub; check its name" in refusal("owner/nothing")
    assert "owner/gated is gated" in refusal("owner/gated")
    assert "no revision 'v9'" in refusal("owner/tiny", revision="v9")
    assert "owner/pickled holds only pickled weights" in refusal("owner/pickled")
    assert "no weights on the hub" in refusal("owner/empty")
    assert not any("resolve" in request for request in hub.requests)


def test_a_download_that_breaks_off_says_so_and_goes_on_next_time(
    hub: type[Hub], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["owner/tiny"] = folder
    whole = hub.answer

    def broken(self: Hub, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        if "safetensors" in self.path and self.command == "GET":
            self.close_connection = True
            self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 99999\r\n\r\npartial")
            return
        whole(self, status, content, headers)

    monkeypatch.setattr(hub, "answer", broken)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert "owner/tiny can't be downloaded" in refusal("owner/tiny")
    monkeypatch.setattr(hub, "answer", whole)
    assert load_target("owner/tiny").weight_format == "f32"


@pytest.mark.parametrize("offline", [False, True])
def test_no_network_is_said_at_once(offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    sentence = refusal("owner/model", offline=offline)
    assert not waits
    assert "'owner/model' is no file or folder here, nor in the hub's cache" in sentence
    assert ("downloads are switched off" if offline else "the hub can't be reached") in sentence


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.target.load_hub.ANSWER_WITHIN", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        assert "the hub can't be reached" in refusal("owner/model")
        assert time.monotonic() - started < 5
