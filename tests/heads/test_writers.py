"""Round trips: a head written in a format and read again is the same, and other programs find what they look for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import head_files as files
import pytest
import torch
from head_files import KEPT, LAYERS, VD, H, V
from safetensors.torch import load_file

from foredraft.errors import ConfigError
from foredraft.heads.checkpoint import read_head
from foredraft.heads.eagle import EagleHead
from foredraft.heads.info import Dialect, TargetFacts
from foredraft.heads.medusa import MedusaHeads, MedusaShape
from foredraft.heads.write import TargetWeights, write_head

TARGET = TargetFacts("some/target", LAYERS, H, V, "ab" * 32)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(4)


def same(one: EagleHead | MedusaHeads, other: EagleHead | MedusaHeads) -> None:
    assert one.shape == other.shape
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert (one.draft_ids is None) == (other.draft_ids is None)
    assert one.draft_ids is None or torch.equal(one.draft_ids, other.draft_ids)


def eagle(make: Callable[..., files.Written], folder: Path, **options: Any) -> EagleHead:
    config, tensors = make(**options)
    facts = replace(TARGET, hidden=config.get("target_hidden_size", H), tokenizer=None)
    head, _ = read_head(files.save(folder, (config, tensors)), target=facts)
    assert isinstance(head, EagleHead)
    return head


@pytest.mark.parametrize(
    ("make", "form", "dialect"),
    [
        (files.eagle1, "safeailab", Dialect.SAFEAILAB_EAGLE1),
        (files.eagle3, "safeailab", Dialect.SAFEAILAB_EAGLE3),
        (files.eagle3, "sglang", Dialect.SPECFORGE),
        (files.eagle3, "speculators", Dialect.SPECULATORS),
        (files.specforge, "sglang", Dialect.SPECFORGE),
        (files.specforge, "speculators", Dialect.SPECULATORS),
        (files.speculators, "speculators", Dialect.SPECULATORS),
        (files.modelopt, "sglang", Dialect.SPECFORGE),
        (files.speculators, "foredraft", Dialect.FOREDRAFT),
        (files.eagle1, "foredraft", Dialect.FOREDRAFT),
    ],
)
def test_eagle(tmp_path: Path, make: Callable[..., files.Written], form: str, dialect: Dialect) -> None:
    head = eagle(make, tmp_path / "first")
    facts = replace(TARGET, hidden=head.shape.target_hidden)
    folder = write_head(head, tmp_path / "second", form=form, target=facts)
    again, info = read_head(folder)  # without the target: the file says it all
    assert info.dialect is dialect
    assert info.doubts == ()
    assert info.layers_known
    assert info.target == facts
    assert isinstance(again, EagleHead)
    same(head, again)


def test_layer_ids_are_written_in_both_conventions(tmp_path: Path) -> None:
    head = eagle(files.eagle3, tmp_path / "first")
    for form in ("safeailab", "sglang", "speculators"):
        config = json.loads((write_head(head, tmp_path / form, form=form) / "config.json").read_text())
        assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
        assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]


def test_what_vllm_reads_of_a_speculators_head(tmp_path: Path) -> None:
    """Key by key what vLLM's reader for this format asks for: the fields of its configuration and its parameters."""
    head = eagle(files.speculators, tmp_path / "first")
    folder = write_head(head, tmp_path / "second", form="speculators", target=TARGET)
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] > 0
    assert config["speculators_config"]["verifier"]["name_or_path"] == "some/target"
    assert config["norm_before_residual"] is True  # its default differs from the format's
    assert config["draft_vocab_size"] == VD
    layer = config["transformer_layer_config"]
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
                "rms_norm_eps", "hidden_act", "max_position_embeddings", "num_hidden_layers", "head_dim"):  # fmt: skip
        assert layer[key] == json.loads((tmp_path / "first/config.json").read_text())["transformer_layer_config"][key]
    assert layer["num_aux_hidden_states"] == 3
    tensors = load_file(folder / "model.safetensors")
    parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
             "mlp.up_proj", "mlp.down_proj", "input_layernorm", "hidden_norm", "post_attention_layernorm",
             "self_attn.q_norm", "self_attn.k_norm")  # fmt: skip
    expected = {f"layers.0.{part}.weight" for part in parts}
    expected |= {f"{name}.weight" for name in ("fc", "norm", "lm_head", "embed_tokens", "input_norm")} | {"d2t", "t2d"}
    assert set(tensors) == expected
    assert tensors["d2t"].dtype == torch.int64
    assert (tensors["d2t"] + torch.arange(VD)).tolist() == KEPT
    assert tensors["t2d"].dtype == torch.bool
    assert tensors["t2d"].nonzero().flatten().tolist() == KEPT


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("output", ["own", "target", "low_rank"])
def test_medusa_native(tmp_path: Path, output: Any, int8: bool) -> None:
    heads = MedusaHeads(MedusaShape(3, H, V, V, output=output, rank=6 if output == "low_rank" else None))
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    form = "foredraft-int8" if int8 else "foredraft"
    folder = write_head(heads, tmp_path, form=form, target=TARGET, extra={"trained": {"steps": 7}})
    assert json.loads((folder / "config.json").read_text())["foredraft"]["trained"] == {"steps": 7}
    again, info = read_head(folder, target=TARGET)
    assert info.target == TARGET
    assert isinstance(again, MedusaHeads)
    if not int8:
        same(heads, again)
        return
    for name, tensor in heads.state_dict().items():
        step = tensor.abs().amax(dim=-1, keepdim=True) / 127 if tensor.dim() > 1 else torch.zeros(1)
        assert bool(((again.state_dict()[name] - tensor).abs() <= 0.501 * step).all()), name
    write_head(again, tmp_path / "twice", form=form, target=TARGET)  # and once more costs nothing
    same(again, read_head(tmp_path / "twice")[0])


@pytest.mark.parametrize("output", ["own", "target", "low_rank"])
@pytest.mark.parametrize("form", ["vllm-medusa", "medusa"])
def test_medusa_for_others(tmp_path: Path, output: Any, form: str) -> None:
    heads = MedusaHeads(MedusaShape(3, H, V, V, output=output, rank=6 if output == "low_rank" else None)).double()
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    matrix = files.random_(V, H)
    folder = write_head(heads, tmp_path, form=form, target=TARGET, weights=TargetWeights(None, matrix))
    again, info = read_head(folder, target=replace(TARGET, tokenizer=None))
    assert info.dialect is (Dialect.VLLM_MEDUSA if form == "vllm-medusa" else Dialect.MEDUSA_HEADS)
    assert isinstance(again, MedusaHeads)
    assert again.shape.output == "own"
    hidden = files.random_(5, H)
    with torch.no_grad():
        expected = heads.logits(heads(hidden), lambda x: x @ matrix.T)
        torch.testing.assert_close(again.logits(again(hidden)), expected)


def test_refused_formats(tmp_path: Path) -> None:
    newer = eagle(files.specforge, tmp_path / "first")
    old = eagle(files.eagle1, tmp_path / "second")
    heads = MedusaHeads(MedusaShape(3, H, V, V))
    for head, form, complaint in (
        (newer, "safeailab", "norm_output and fc_norm"),
        (old, "speculators", "no EAGLE-1"),
        (old, "medusa", "can't be written as medusa"),
        (heads, "sglang", "can't be written as sglang"),
        (heads, "vllm-medusa", "pass --target"),
        (heads, "gguf", "is no format"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            write_head(head, tmp_path / "out", form=form)
    assert not (tmp_path / "out" / "model.safetensors").exists()
