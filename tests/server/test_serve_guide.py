"""The guide's Python blocks run as they stand, against a server of the tiny model under the guide's name."""

from __future__ import annotations

import re
from pathlib import Path

from tiny_server import listening, load_tiny, tiny_service

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "serve.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_blocks_run(tiny_checkpoint: Path) -> None:
    code = "\n".join(BLOCK.findall(GUIDE))
    assert "OpenAI(" in code
    service = tiny_service(lambda: load_tiny(tiny_checkpoint), model_names=("smollm2-135m",))
    with listening(service) as address:
        assert "http://127.0.0.1:8000" in code
        names: dict[str, object] = {}
        exec(compile(code.replace("http://127.0.0.1:8000", address), "serve.md", "exec"), names)
    assert names["answer"].usage.completion_tokens_details.accepted_prediction_tokens >= 0  # type: ignore[attr-defined]


def test_every_field_that_the_guide_names_is_known() -> None:
    from foredraft.server.protocol import ChatRequest, CompletionRequest

    section = GUIDE.split("## Fields")[1].split("Details worth knowing")[0]
    named = {name.split(":")[0] for name in re.findall(r"`([a-z_]+(?:: \w+)?)`", section)} - {"extra_body"}
    known = ChatRequest.model_fields.keys() | CompletionRequest.model_fields.keys()
    assert len(named) > 40
    assert named <= known, named - known
