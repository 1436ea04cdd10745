"""Loading: everything a model can be named by, and one sentence for everything that can be wrong with it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import change_config, refusal, write_folder
from gguf_files import write_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from foredraft.errors import CapacityError, ConfigError, LoadError
from foredraft.target.loading import DTYPES, LoadedModel, load_target, load_tokenizer


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


# ---- what loads ----


def test_a_folder_loads_ready_to_decode(folder: Path) -> None:
    loaded = load_target(str(folder))
    assert isinstance(loaded, LoadedModel)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.model.config._attn_implementation == "eager"
    assert loaded.tokenizer.encode("a b c") == [3, 4, 5]
    assert (loaded.name, loaded.path, loaded.weight_format) == (str(folder), folder, "f32")
    assert loaded.max_model_len == 96
    stored = load_file(folder / "model.safetensors")
    for name, value in stored.items():
        assert torch.equal(loaded.model.state_dict()[name], value)


def test_attention_implementation_is_the_callers(folder: Path) -> None:
    assert load_target(str(folder), attn_implementation="sdpa").model.config._attn_implementation == "sdpa"
    assert "no_such_attention" in refusal(folder, attn_implementation="no_such_attention")


@pytest.mark.parametrize(
    ("stored", "asked", "wanted"),
    [
        (torch.bfloat16, "auto", torch.bfloat16),
        (torch.float16, "auto", torch.bfloat16),
        (torch.float32, "auto", torch.float32),
        (torch.float64, "auto", torch.float64),
        (torch.float32, "float64", torch.float64),
        (torch.float32, "half", torch.float16),
        (torch.bfloat16, "float", torch.float32),
    ],
)
def test_dtypes(stored: torch.dtype, asked: str, wanted: torch.dtype, tmp_path: Path) -> None:
    loaded = load_target(str(write_folder(tmp_path / "m", stored)), dtype=asked)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {wanted}
    short = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.float64: "f64"}
    assert loaded.weight_format == short[stored]


def test_unknown_dtype_lists_the_known_ones(folder: Path) -> None:
    sentence = refusal(folder, ConfigError, dtype="fp8")
    assert "'fp8'" in sentence
    assert all(name in sentence for name in ("auto", *DTYPES))


def test_length_is_the_models_own_or_less(folder: Path) -> None:
    assert load_target(str(folder), max_model_len=50).max_model_len == 50
    sentence = refusal(folder, ConfigError, max_model_len=97)
    assert "97" in sentence
    assert "96 tokens" in sentence
    assert "must be at least 1" in refusal(folder, ConfigError, max_model_len=0)


def test_end_tokens_are_the_union_of_all_three_sources(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7], "temperature": 0.6}))
    change_config(folder, eos_token_id=9)
    loaded = load_target(str(folder))
    assert loaded.eos_token_ids == (2, 5, 7, 9)
    assert loaded.generation_defaults is not None
    assert loaded.generation_defaults.temperature == 0.6
    (folder / "generation_config.json").unlink()
    assert load_target(str(folder)).generation_defaults is None


def test_fingerprint_changes_with_weights_configuration_and_dtype(folder: Path) -> None:
    first = load_target(str(folder)).fingerprint
    assert load_target(str(folder)).fingerprint == first
    assert load_target(str(folder), dtype="bfloat16").fingerprint != first
    change_config(folder, rms_norm_eps=1e-4)
    second = load_target(str(folder)).fingerprint
    assert second != first
    weights = load_file(folder / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    assert load_target(str(folder)).fingerprint != second


def test_sharded_weights(folder: Path) -> None:
    whole = load_target(str(folder)).model.state_dict()
    (folder / "model.safetensors").unlink()
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder, max_shard_size="10KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert load_target(str(folder)).model.state_dict().keys() == whole.keys()
    shards[1].unlink()
    assert f"lacks 1 of {len(shards)} weight files, such as {shards[1].name}" in refusal(folder)


def test_home_and_relative_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load_target(f"~/{folder.name}").path == folder
    monkeypatch.chdir(folder.parent)
    assert load_target(folder.name).path == Path(folder.name)


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "quantised").mkdir()
    written = write_model(tmp_path / "quantised" / "m.gguf")
    assert load_target(str(tmp_path / "quantised")).path == load_target(str(written.path)).path
    shutil.copy(written.path, tmp_path / "quantised" / "other.gguf")
    sentence = refusal(tmp_path / "quantised")
    assert "2 .gguf files" in sentence
    assert "m.gguf, other.gguf" in sentence


def test_tokenizer_alone(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "config.json").unlink()
    assert load_tokenizer(str(folder)).encode("c a") == [5, 3]
    written = write_model(tmp_path / "m.gguf")
    assert load_tokenizer(str(written.path)).encode("hello") == load_target(str(written.path)).tokenizer.encode("hello")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match="no tokenizer that can be loaded"):
        load_tokenizer(str(folder))


def test_loading_says_nothing_on_the_terminal(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_target(str(folder))
    assert capfd.readouterr() == ("", "")


# ---- what is refused ----


@pytest.mark.parametrize(
    "name", ["./nothing/here", "/no/such/folder", "no/such/deep/path", "missing.gguf", "", "a\0b", "x" * 5000]
)
def test_a_path_that_does_not_exist(name: str) -> None:
    sentence = refusal(name)
    assert repr(name) in sentence
    assert "doesn't exist; pass a folder, a .gguf file, a hub id, or the alias 'smollm2-135m'" in sentence


@pytest.mark.parametrize("named", ["folder", "alias"])
def test_a_revision_of_what_has_none(folder: Path, named: str) -> None:
    sentence = refusal(str(folder) if named == "folder" else "smollm2-135m", revision="v2")
    assert "the revision 'v2' is given for" in sentence
    assert "leave it out" in sentence


def test_a_folder_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert f"{folder} has no config.json" in refusal(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_a_config_that_is_not_one(text: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in refusal(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "has no weights (model.safetensors" in refusal(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "model.pth", "last.ckpt"])
def test_pickles_are_refused_unopened_and_with_the_remedy(name: str, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / name)
    for model in (folder, folder / name):
        sentence = refusal(model)
        assert "holds only pickled weights" in sentence
        assert name in sentence
        assert "save_pretrained" in sentence


def test_a_pickle_beside_safetensors_does_not_matter(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    assert load_target(str(folder)).weight_format == "f32"


@pytest.mark.parametrize("keep", [0, 4, 50, 0.5, 0.999])
def test_truncated_safetensors(keep: float, folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, int(keep * path.stat().st_size) if isinstance(keep, float) else keep)
    sentence = refusal(folder)
    assert str(path) in sentence
    assert "download it again" in sentence


@pytest.mark.parametrize("junk", [b"\0" * 500, b"not weights" * 50, (40).to_bytes(8, "little") + b"{]" * 40])
def test_corrupt_safetensors(junk: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(junk)
    assert "model.safetensors is damaged" in refusal(folder)


def test_weights_that_are_missing_are_never_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "lacks 1 of the model's weights, like 'model.layers.1.mlp.up_proj.weight'" in refusal(folder)


def test_weights_of_another_shape(folder: Path) -> None:
    change_config(folder, intermediate_size=40)
    assert str(folder) in refusal(folder)


def test_unknown_model_type(folder: Path) -> None:
    change_config(folder, model_type="martian")
    assert "of the model type 'martian', which this transformers doesn't know" in refusal(folder)
    change_config(folder, auto_map={"AutoModelForCausalLM": "martian.Martian"})
    assert "--trust-remote-code" in refusal(folder)


def test_own_code_runs_only_when_trusted(folder: Path) -> None:
    change_config(
        folder,
        model_type="own_llama",
        auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    )
    (folder / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own_llama'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    refusal(folder)
    assert type(load_target(str(folder), trust_remote_code=True).model).__name__ == "OwnForCausalLM"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder (t5)"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM, which doesn't write text"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "ViTModel, which doesn't write text"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "LlamaForSequenceClassification, which doesn't write text",
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised by gptq"),
    ],
    ids=["encoder-decoder", "masked", "vision", "classifier", "gptq"],
)
def test_models_that_cannot_be_run(settings: dict[str, Any], reason: str, folder: Path) -> None:
    change_config(folder, **settings)
    assert reason in refusal(folder)


def test_an_adapter_alone(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter without its base model" in refusal(folder)


def test_one_file_of_a_folder_and_a_file_of_another_kind(folder: Path) -> None:
    assert "pass the folder that holds it" in refusal(folder / "model.safetensors")
    assert "is not a GGUF file" in refusal(folder / "tokenizer.json")


def test_a_folder_without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    sentence = refusal(folder)
    assert "no tokenizer that can be loaded" in sentence
    assert "add its tokenizer.json" in sentence


def test_lack_of_memory_is_a_capacity_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", allocate)
    assert "doesn't fit into memory" in refusal(folder, CapacityError)
