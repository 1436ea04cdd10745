"""What can be wrong with a head's file, and the one sentence that says so."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import head_files as files
import pytest
import torch
from head_files import LAYERS, H, V

from foredraft.errors import LoadError
from foredraft.heads.checkpoint import read_head
from foredraft.heads.info import TargetFacts, vocabulary_hash
from foredraft.heads.medusa import MedusaHeads, MedusaShape
from foredraft.heads.write import write_head

TARGET = TargetFacts("some/target", LAYERS, H, V)


def refusal(path: Path, target: TargetFacts = TARGET, **options: Any) -> str:
    with pytest.raises(LoadError) as caught:
        read_head(path, target=target, **options)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("name", ["trunc.gguf", "text.txt", "config.json", "weights"])
@pytest.mark.parametrize("allow_pickle", [True, False])
def test_a_file_that_is_no_file_of_weights(tmp_path: Path, name: str, allow_pickle: bool) -> None:
    files.save(tmp_path, files.eagle3())
    if name != "config.json":
        (tmp_path / name).write_bytes(b"GGUF")
    sentence = refusal(tmp_path / name, allow_pickle=allow_pickle)
    assert "is no file of weights (.safetensors, or a pickle: .bin, .pt, .pth, .ckpt); pass a head's folder" in sentence


def test_a_revision_of_a_local_head(tmp_path: Path) -> None:
    files.save(tmp_path, files.eagle3())
    assert "'foo' is given" in refusal(tmp_path, revision="foo")
    assert "leave it out" in refusal(tmp_path / "model.safetensors", revision="foo")


def test_another_target(tmp_path: Path) -> None:
    files.save(tmp_path, files.eagle3())
    assert "hidden size 16, and some/target has 20" in refusal(tmp_path, TargetFacts("some/target", LAYERS, 20, V))
    assert "vocabulary size 40, and some/target has 41" in refusal(
        tmp_path, TargetFacts("some/target", LAYERS, H, V + 1)
    )
    files.save(tmp_path, files.medusa_heads())
    assert "hidden size 16" in refusal(tmp_path, TargetFacts("some/target", LAYERS, 20, V))


def test_another_tokenizer(tmp_path: Path) -> None:
    ours, theirs = vocabulary_hash({"a": 0, "b": 1}), vocabulary_hash({"a": 1, "b": 0})
    assert ours != theirs
    heads = MedusaHeads(MedusaShape(1, H, V, V))
    write_head(heads, tmp_path, target=TargetFacts("some/target", LAYERS, H, V, ours))
    read_head(tmp_path, target=TargetFacts("its/copy", LAYERS, H, V, ours))
    assert "another tokenizer" in refusal(tmp_path, TargetFacts("other", LAYERS, H, V, theirs))


@pytest.mark.parametrize(
    "name",
    ["norm.weight", "midlayer.mlp.up_proj.weight", "midlayer.self_attn.q_proj.weight", "midlayer.hidden_norm.weight"],
)
def test_missing_tensor(tmp_path: Path, name: str) -> None:
    config, tensors = files.eagle3()
    del tensors[name]
    files.save(tmp_path, (config, tensors))
    assert name.replace("midlayer", "layers.0") in refusal(tmp_path)


def test_missing_vocabulary(tmp_path: Path) -> None:
    config, tensors = files.eagle3()
    del tensors["d2t"], tensors["t2d"]
    files.save(tmp_path, (config, tensors))
    assert "drafts from 12 of 40 tokens" in refusal(tmp_path)


def test_draft_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    config, tensors = files.eagle3()
    tensors["d2t"][-1] = 500
    files.save(tmp_path, (config, tensors))
    assert "to 511, outside the vocabulary of 40" in refusal(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    config, tensors = files.eagle3()
    tensors["midlayer.mlp.up_proj.weight"][3, 4] = value
    files.save(tmp_path, (config, tensors))
    assert "1 weights in midlayer.mlp.up_proj.weight that are NaN or infinite" in refusal(tmp_path)


@pytest.mark.parametrize("layers", [[2, 4, 8], [2, 4], [0, 4, 99], [-1, 2, 3]])
def test_wrong_layer_ids(tmp_path: Path, layers: list[int]) -> None:
    config, tensors = files.eagle3()
    files.save(tmp_path, ({**config, "eagle_aux_hidden_state_layer_ids": layers}, tensors))
    assert "eagle_aux_hidden_state_layer_ids" in refusal(tmp_path)


@pytest.mark.parametrize("kept", [-100, 200, 5])
def test_truncated_file(tmp_path: Path, kept: int) -> None:
    path = files.save(tmp_path, files.eagle3()) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "cut off or damaged" in refusal(tmp_path)


@pytest.mark.parametrize("kept", [-100, 200, 0])
def test_truncated_pickle(tmp_path: Path, kept: int) -> None:
    path = files.save(tmp_path, files.medusa_heads(), "medusa_lm_head.pt") / "medusa_lm_head.pt"
    path.write_bytes(path.read_bytes()[:kept])
    assert "damaged" in refusal(tmp_path, allow_pickle=True)


def test_pickle_without_the_flag(tmp_path: Path) -> None:
    files.save(tmp_path, files.medusa_heads(), "medusa_lm_head.pt")
    assert "is a pickle" in refusal(tmp_path)
    assert "--allow-pickle" in refusal(tmp_path)


def test_pickle_that_runs_code(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (marker,)

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Trap()}))
    assert "refuses it" in refusal(tmp_path, allow_pickle=True)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"speculators_model_type": "peagle"}, "P-EAGLE"),
        ({"speculators_model_type": "magic"}, "speculators magic head"),
        ({"dflash_config": {}}, "block drafter"),
        ({"hidden_act": "swish9"}, "'swish9'"),
        ({"num_attention_heads": 5}, "don't fit together"),
        ({"num_attention_heads": "4"}, "should be a whole number"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral'"),
        ({"norm_output": "yes"}, "should be true or false"),
    ],
)
def test_configurations(tmp_path: Path, config: dict[str, Any], complaint: str) -> None:
    written, tensors = files.eagle3()
    files.save(tmp_path, ({**written, **config}, tensors))
    with pytest.raises(LoadError) as caught:
        read_head(tmp_path, target=TARGET)
    assert complaint in str(caught.value)


def test_no_head(tmp_path: Path) -> None:
    files.save(tmp_path, ({"model_type": "llama"}, {"model.layers.0.self_attn.q_proj.weight": torch.zeros(4, 4)}))
    assert "a whole model of type llama, not a head" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "can't be read as JSON" in refusal(tmp_path)
    assert "doesn't exist" in refusal(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no weights" in refusal(empty)


def test_hub_id_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for offline in (True, False):
        with pytest.raises(LoadError, match="'somebody/some-head' is no file or folder here, nor in the hub's cache"):
            read_head("somebody/some-head", offline=offline)


def test_superfluous_and_misshapen_tensors(tmp_path: Path) -> None:
    config, tensors = files.eagle3()
    files.save(tmp_path, (config, tensors | {"midlayer.mlp.gate_proj.bias": files.random_(24)}))
    assert "midlayer.mlp.gate_proj.bias, which has no place" in refusal(tmp_path)
    files.save(tmp_path, (config, tensors | {"midlayer.mlp.up_proj.weight": files.random_(23, H)}))
    assert "shape [23, 16] where [24, 16] is expected" in refusal(tmp_path)
