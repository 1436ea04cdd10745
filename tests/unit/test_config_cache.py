"""Configurations remembered from an earlier start say what transformers' own class says, without importing it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import change_config, write_folder
from gguf_files import write_model
from safetensors.torch import load_file

from foredraft.target.config_cache import recall_config
from foredraft.target.llama_shape import FAMILIES, read_shape
from foredraft.target.load_checkpoint import load_config
from foredraft.target.loading import prepare_target

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS = [
    *((family, {}) for family in FAMILIES),
    ("llama", {"rope_parameters": LLAMA3}),
    ("mistral", {"sliding_window": 8}),
    ("qwen3", {"head_dim": 32}),
    ("granite", {"logits_scaling": 4.0, "embedding_multiplier": 2.0}),
]

START = """
import sys
from foredraft import LLM, SamplingParams
print(LLM(sys.argv[1]).generate("a b", SamplingParams(temperature=0, max_tokens=4))[0].outputs[0].token_ids)
print(sorted({"sympy", "torch.distributed.tensor", "transformers.modeling_utils"} & sys.modules.keys()))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("family", "settings"), VARIANTS)
def test_a_remembered_configuration_says_the_same(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    settings = {"pad_token_id": 0, "bos_token_id": 1, **settings}
    folder = write_folder(tmp_path / "model", dtype=torch.bfloat16, family=family, **settings)
    names = list(load_file(folder / "model.safetensors"))
    read, prepared = load_config(folder, False), prepare_target(str(folder))
    remembered = load_config(folder, False)
    assert type(remembered) is not type(read)
    assert (remembered.dtype, remembered.model_type) == (read.dtype, read.model_type)
    expected, found = (asdict(read_shape(config, names)) for config in (read, remembered))
    assert torch.equal(found.pop("inverse_frequencies"), expected.pop("inverse_frequencies"))
    assert found == expected
    again = prepare_target(str(folder))
    assert again.max_model_len == prepared.max_model_len
    assert again.eos_token_ids == prepared.eos_token_ids


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    assert load_config(folder, False).rms_norm_eps != 0.5
    change_config(folder, rms_norm_eps=0.5)
    assert recall_config(folder) is None
    assert load_config(folder, False).rms_norm_eps == 0.5


@pytest.mark.parametrize("content", ["", "{", "[1]", "null"])
def test_a_damaged_note_is_read_again(content: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    load_config(folder, False)
    [note] = (tmp_path / "cache" / "configurations").iterdir()
    note.write_text(content)
    assert load_config(folder, False).hidden_size == json.loads((folder / "config.json").read_text())["hidden_size"]


def test_other_architectures_are_not_remembered(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", family="gpt_neox")
    assert load_config(folder, False).model_type == "gpt_neox"
    assert recall_config(folder) is None


def test_a_second_start_of_a_gguf_file_imports_little(tmp_path: Path) -> None:
    """A folder's tokenizer is loaded by AutoTokenizer, which imports the class all the same."""
    write_model(tmp_path / "model.gguf", max_position_embeddings=64)
    first, second = (
        subprocess.run(
            [sys.executable, "-c", START, str(tmp_path / "model.gguf")], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        for _ in range(2)
    )
    assert second[0] == first[0]
    assert (first[1] != "[]", second[1]) == (True, "[]")
