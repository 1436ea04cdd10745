"""Every dialect, read and run, against the reference forward passes over the file's own tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import head_files as files
import head_references as references
import pytest
import torch
from head_files import HEADS, KEPT, KV_HEADS, LAYERS, H, V
from torch import Tensor

from foredraft.heads.chains import ChainAttention
from foredraft.heads.checkpoint import read_head
from foredraft.heads.eagle import EagleHead
from foredraft.heads.info import Dialect, Doubt, TargetFacts
from foredraft.heads.medusa import MedusaHeads

ROWS = 5
TARGET = TargetFacts("some/target", LAYERS, H, V)
SHAPE: dict[str, Any] = {"heads": HEADS, "kv_heads": KV_HEADS}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(3)


def states(head: EagleHead, embeddings: Tensor, feature: Tensor, first: int = 0) -> Tensor:
    return head.step(embeddings, feature, torch.arange(first, first + len(feature)), ChainAttention())


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("hass", [True, False])
def test_eagle1(tmp_path: Path, biased: bool, hass: bool) -> None:
    written = files.eagle1(biased=biased, hass=hass)
    head, info = read_head(files.save(tmp_path, written), target=TARGET)
    assert isinstance(head, EagleHead)
    assert info.dialect == (Dialect.HASS if hass else Dialect.SAFEAILAB_EAGLE1)
    assert info.method == "eagle"
    assert head.shape.aux_layers == (-1,)
    assert not head.shape.own_embedding  # a copy of the target's, left in the file
    embeddings, taps = files.random_(ROWS, H), files.random_(ROWS, 1, H)
    got = states(head, embeddings, head.fuse(taps), first=2)
    expected = references.eagle1(written[1], embeddings, taps[:, 0], list(range(2, 2 + ROWS)), **SHAPE)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    output = files.random_(V, H)
    torch.testing.assert_close(head.logits(got, lambda x: x @ output.T), got @ output.T)
    assert torch.equal(head.feedback(got), got)


EAGLE3 = {
    "SafeAILab": (files.eagle3, {}, Dialect.SAFEAILAB_EAGLE3, (2, 4, 5), ()),
    "SpecForge": (
        files.specforge,
        {"theta": 500.0, "factor": 2.0},
        Dialect.SPECFORGE,
        (1, 4, 6),
        (Doubt.NORM_OUTPUT,),
    ),
    "ModelOpt": (files.modelopt, {"layer": "layers.0."}, Dialect.MODELOPT_EAGLE, (2, 4, 5), ()),
    "speculators": (
        files.speculators,
        {"layer": "layers.0.", "norm_before_residual": True},
        Dialect.SPECULATORS,
        (2, 4, 5),
        (),
    ),
}


@pytest.mark.parametrize("flavour", EAGLE3)
def test_eagle3(tmp_path: Path, flavour: str) -> None:
    make, options, dialect, layers, doubts = EAGLE3[flavour]
    written = make()
    wide = written[0].get("target_hidden_size", H)
    facts = TargetFacts("some/target", LAYERS, wide, V)
    head, info = read_head(files.save(tmp_path, written), target=facts)
    assert isinstance(head, EagleHead)
    assert info.dialect is dialect
    assert info.method == "eagle3"
    assert info.doubts == doubts
    assert head.shape.aux_layers == layers
    assert head.draft_ids is not None
    assert head.draft_ids.tolist() == KEPT
    embeddings, taps = files.random_(ROWS, H), files.random_(ROWS, 3, wide)
    got = states(head, embeddings, head.fuse(taps))
    expected, logits = references.eagle3(written[1], embeddings, taps, list(range(ROWS)), **options, **SHAPE)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(head.logits(got), logits, rtol=0, atol=1e-6)
    normed = torch.stack([references.rms(row, written[1]["norm.weight"]) for row in got])
    torch.testing.assert_close(head.feedback(got), normed if flavour == "SpecForge" else got)
    if "embed_tokens.weight" in written[1]:
        assert torch.equal(head.embed(torch.tensor([5]), lambda tokens: tokens), written[1]["embed_tokens.weight"][5:6])


def test_speculators_defaults(tmp_path: Path) -> None:
    """Where the configuration is silent its class's defaults hold, and what readers differ on is in doubt."""
    config, tensors = files.speculators()
    for key in ("norm_before_residual", "draft_vocab_size", "norm_before_fc", "eagle_aux_hidden_state_layer_ids"):
        del config[key]
    head, info = read_head(files.save(tmp_path, (config, tensors)), target=TARGET)
    assert isinstance(head, EagleHead)
    assert not head.shape.norm_before_residual
    assert info.doubts == (Doubt.NORM_BEFORE_RESIDUAL,)
    assert head.shape.norm_before_fc  # the tensor is there
    assert head.shape.aux_layers == (2, 4, 5)


def test_overrides(tmp_path: Path) -> None:
    files.save(tmp_path, files.specforge())
    facts = TargetFacts("some/target", LAYERS, 2 * H, V)
    head, info = read_head(tmp_path, target=facts, norm_output=False, norm_before_residual=True, aux_layers=(1, 2, 3))
    assert isinstance(head, EagleHead)
    assert (head.shape.norm_output, head.shape.norm_before_residual) == (False, True)
    assert head.shape.aux_layers == (1, 2, 3)
    assert info.doubts == ()


def test_whole_vocabulary(tmp_path: Path) -> None:
    """Left-over mapping tensors that say nothing are nothing."""
    config, tensors = files.eagle3(reduced=False)
    tensors |= {"d2t": torch.zeros(V, dtype=torch.long), "t2d": torch.ones(V, dtype=torch.bool)}
    head, _ = read_head(files.save(tmp_path, (config, tensors)), target=TARGET)
    assert isinstance(head, EagleHead)
    assert head.draft_ids is None


def test_mask_without_offsets(tmp_path: Path) -> None:
    config, tensors = files.eagle3()
    tensors["d2t"].zero_()
    head, _ = read_head(files.save(tmp_path, (config, tensors)), target=TARGET)
    assert head.draft_ids is not None
    assert head.draft_ids.tolist() == KEPT


@pytest.mark.parametrize(
    ("prefix", "dialect"),
    [
        ("", Dialect.MEDUSA_HEADS),
        ("medusa_head.", Dialect.MEDUSA_MODEL),
        ("medusa_heads.", Dialect.MODELOPT_MEDUSA),
    ],
)
def test_medusa(tmp_path: Path, prefix: str, dialect: Dialect) -> None:
    config, tensors = files.medusa_heads(prefix)
    if prefix:
        tensors["model.layers.0.self_attn.q_proj.weight"] = files.random_(H, H)
    heads, info = read_head(files.save(tmp_path, (config, tensors)), target=TARGET)
    assert isinstance(heads, MedusaHeads)
    assert info.dialect is dialect
    assert heads.shape.heads == 3  # the configuration says 2
    assert info.notes
    hidden = files.random_(ROWS, H)
    got = heads.logits(heads(hidden))
    for head in range(3):
        names = [f"{prefix}{head}.{block}.linear" for block in range(2)]
        block = [(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in names]
        expected = references.medusa(block, tensors[f"{prefix}{head}.2.weight"], hidden)
        torch.testing.assert_close(got[:, head], expected)


@pytest.mark.parametrize("truncated", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_vllm_medusa(tmp_path: Path, truncated: bool, shared: bool) -> None:
    written = files.vllm_medusa(truncated=truncated, shared=shared)
    heads, info = read_head(files.save(tmp_path, written), target=TARGET)
    assert isinstance(heads, MedusaHeads)
    assert info.dialect is Dialect.VLLM_MEDUSA
    assert (None if heads.draft_ids is None else heads.draft_ids.tolist()) == (KEPT if truncated else None)
    hidden = files.random_(ROWS, H)
    got = heads.logits(heads(hidden))
    for head in range(3):
        block = [(written[1][f"medusa_heads.blocks.{head}.layers.0.weight"], None)]
        output = written[1][f"lm_heads.{0 if shared else head}.weight"]
        torch.testing.assert_close(got[:, head], references.medusa(block, output, hidden))


def test_pickle_with_the_flag(tmp_path: Path) -> None:
    written = files.medusa_heads()
    files.save(tmp_path, written, "medusa_lm_head.pt")
    heads, _ = read_head(tmp_path, target=TARGET, allow_pickle=True)
    again, _ = read_head(tmp_path / "medusa_lm_head.pt", target=TARGET, allow_pickle=True)
    for name, tensor in heads.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert torch.equal(heads.state_dict()["blocks.2.layers.1.bias"], written[1]["2.1.linear.bias"])
