"""Values of flags that nothing can be done with: refused by name, before anything expensive."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command_line import Cli

from foredraft.errors import ConfigError
from foredraft.target.open_decoder import _device


@pytest.mark.parametrize("device", ["meta", "mps", "xpu:0", "cpu:1", "cuda:x", "cuda:-1", "cuda:01", "", "CPU"])
def test_an_unknown_device(device: str, cli: Cli, tiny_checkpoint: Path) -> None:
    sentence = cli("generate", tiny_checkpoint, "hi", "--device", device).sentence
    assert f"device {device!r} is unknown; use auto, cpu or cuda" in sentence


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ConfigError, match=f"device '{name}' was asked for, but torch sees no GPU"):
            _device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert _device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="device 'cuda:2' was asked for, but the last GPU is cuda:1"):
        _device("cuda:2")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"1": 1' + "0" * 400 + "}", "has the entry '1': 1000"),
        ('{"1": 1' + "0" * 5000 + "}", "holds a number or a nesting beyond reason"),
        ('{"' + "1" * 5000 + '": 1}', "has the entry '1111"),
        ('{"1": ' + "[" * 100_000, "holds a number or a nesting beyond reason"),
        ('{"1": true}', "has the entry '1': True"),
    ],
)
def test_biases_beyond_reason(text: str, complaint: str, cli: Cli) -> None:
    sentence = cli("generate", "no/such/model", "hi", "--logit-bias", text).sentence
    assert f"--logit-bias {complaint}" in sentence
    assert len(sentence) < 250
