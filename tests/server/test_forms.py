"""Schemas and grammars are compiled before the engine's thread sees the request, and within bounds."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tiny_server import client_of, load_tiny, tiny_service

from foredraft.engine.structured import Grammars
from foredraft.errors import RequestError
from foredraft.server.api_errors import ApiError
from foredraft.server.forms import FormCompiler
from foredraft.server.service import Service
from foredraft.types import StructuredOutput

BODY = {"prompt": "Say", "max_tokens": 12, "temperature": 0}
FORM = StructuredOutput("regex", "a+")


@pytest.fixture(scope="module")
def service(tiny_checkpoint: Path) -> Service:
    return tiny_service(lambda: load_tiny(tiny_checkpoint))


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[TestClient]:
    with client_of(service) as client:
        yield client


def test_a_slow_form_holds_up_its_own_request_only(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    threads: list[str] = []
    compile_now = Grammars._compile

    def compile_slowly(self: Grammars, form: StructuredOutput) -> Any:
        threads.append(threading.current_thread().name)
        begun.set()
        assert go.wait(60)
        return compile_now(self, form)

    monkeypatch.setattr(Grammars, "_compile", compile_slowly)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(client.post, "/v1/completions", json={**BODY, "guided_regex": "[ab]{3}"})
        assert begun.wait(60)
        assert client.post("/v1/completions", json=BODY).status_code == 200
        assert not slow.done()
        go.set()
        answer = slow.result(60)
    assert set(answer.json()["choices"][0]["text"]) <= {"a", "b"}
    assert [name.startswith("foredraft-forms") for name in threads] == [True], "compiled once, and not by the engine"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_forms_that_are_too_large_or_wrong_are_refused(client: TestClient, path: str) -> None:
    asked = {"prompt": "Say"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    large = client.post(path, json={**asked, "guided_json": {"enum": ["x" * 300_000]}})
    assert large.status_code == 400
    assert "262144" in large.json()["error"]["message"]
    for form, param in [
        ({"guided_regex": "("}, "guided_regex"),
        ({"structured_outputs": {"regex": r"[^\s\S]"}}, "structured_outputs"),
        ({"guided_grammar": "start: start"}, "guided_grammar"),
        ({"response_format": {"type": "json_object", "schema": {"enum": []}}}, "response_format"),
    ]:
        wrong = client.post(path, json={**asked, **form})
        assert wrong.status_code == 400
        assert "can't be used" in wrong.json()["error"]["message"]
        assert wrong.json()["error"]["param"] == param


def long_chain() -> dict[str, Any]:
    links = {f"a{index}": {"type": "array", "items": {"$ref": f"#/$defs/a{index + 1}"}} for index in range(4000)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, "a4000": {"type": "integer"}}}


@pytest.mark.parametrize(
    "form",
    [
        {"guided_json": long_chain()},
        {
            "guided_grammar": "\n".join(
                ["start: a0", *(f"a{each}: a{each + 1}" for each in range(12000)), 'a12000: "x"']
            )
        },
    ],
    ids=["references", "rules"],
)
def test_a_long_chain_does_not_overflow_the_stack(client: TestClient, form: dict[str, Any]) -> None:
    """Which would end the server."""
    answer = client.post("/v1/completions", json={**BODY, **form})
    assert answer.status_code in (200, 400)
    assert client.post("/v1/completions", json=BODY).status_code == 200


def test_a_schema_beside_json_object(client: TestClient) -> None:
    """llama.cpp's way."""
    form = {"type": "json_object", "schema": {"const": {"a": 1}}}
    answer = client.post("/v1/completions", json={**BODY, "response_format": form})
    assert answer.json()["choices"][0]["text"] == '{"a": 1}'


class Stuck(Grammars):
    """Compiles until it may end."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def compile(self, form: StructuredOutput) -> Any:
        assert self.go.wait(60)
        return form


def test_the_wait_has_an_end() -> None:
    """Threads that are busy say so; what takes too long is the form's own fault."""
    grammars, compiler = Stuck(), FormCompiler(seconds=0.05)

    async def ask_three() -> list[Any]:
        return await asyncio.gather(*(compiler.compile(grammars, FORM) for _ in range(3)), return_exceptions=True)

    found = asyncio.run(ask_three())
    grammars.go.set()
    assert all(isinstance(one, ApiError) for one in found)
    assert sorted((one.status, one.code) for one in found) == [(400, None), (400, None), (503, "forms_busy")]
    assert "regex takes more than 0.05 seconds" in str(found[0])
    compiler.close()


def test_a_compiler_that_panics_refuses_the_form(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    def panic(*_: object) -> str:
        raise Panic("index out of bounds")

    monkeypatch.setattr("foredraft.engine.structured._grammar", panic)
    answer = client.post("/v1/completions", json={**BODY, "guided_json": json.dumps({"type": "integer"})})
    assert answer.status_code == 400
    assert "index out of bounds" in answer.json()["error"]["message"]


def test_compiled_forms_may_be_used_by_another_thread(service: Service, client: TestClient) -> None:
    grammars = service.llm.engine.grammars
    with ThreadPoolExecutor(4) as pool:
        forms = [StructuredOutput("regex", f"x{{{count}}}") for count in range(1, 9)]
        compiled = list(pool.map(grammars.compile, forms))
        with pytest.raises(RequestError):
            pool.submit(grammars.compile, StructuredOutput("regex", "[")).result()
    for form, one in zip(forms, compiled, strict=True):
        assert grammars.compile(form) is one
        assert one.deep_copy().compute_bitmask()
