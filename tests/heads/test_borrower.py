"""Draft models that borrow the target's embedding table: what they compute, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lean_targets import SHAPE, lean_target
from models import VOCAB, tiny_target
from safetensors.torch import load_file, save_file
from torch import Tensor

from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.head_method import method_of
from foredraft.drafters.open_draft_model import open_draft_model
from foredraft.engine.engine import Engine
from foredraft.errors import LoadError
from foredraft.heads.borrower import write_borrower
from foredraft.heads.checkpoint import read_head
from foredraft.heads.info import TargetFacts
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache
from foredraft.target.quantization import WeightFormat
from foredraft.target.target import Target
from foredraft.testing import decode, decode_plainly, difference, mixed_asks

IDS = torch.tensor([1, 2, *range(5, VOCAB, 3)])
WIDTH = SHAPE["hidden_size"]


def student() -> Any:
    """One layer, as wide as the lean targets."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = LlamaForCausalLM(LlamaConfig(**{**SHAPE, "num_hidden_layers": 1}))
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.2)
    return model.eval().requires_grad_(False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_borrower(tmp_path / "lean", student(), IDS, TargetFacts("lean", None, WIDTH, VOCAB))
    return tmp_path / "lean"


def logits(folder: Path, target: Target, text: list[int]) -> Tensor:
    """[T, Vd] of the draft model over the target."""
    opened = open_draft_model(str(folder), target, revision=None, trust_remote_code=False)
    assert opened.draft_ids is not None
    assert opened.draft_ids.tolist() == IDS.tolist()
    decoder = opened.decoder
    cache = KVCache(decoder.cache_shape, 1, decoder.cache_dtype)
    cache.reserve(len(text))
    flat = FlatPass(torch.tensor(text), torch.arange(len(text)), (Segment(0, 0, 0, len(text)),))
    return decoder.head(decoder.forward(flat, cache).last)


@pytest.mark.parametrize(("weight_format", "tolerance"), [("float32", 0.03), ("bfloat16", 0.06), ("int8", 0.06)])
def test_it_computes_what_the_whole_model_computes(folder: Path, weight_format: WeightFormat, tolerance: float) -> None:
    """But for the int8 of its storage, and with the target's embeddings."""
    target, whole = lean_target(weight_format), student()
    text = [3, 50, 7, 8, 60, 21]
    whole.get_input_embeddings().weight.data = target.decoder.embed(torch.arange(VOCAB)).float()
    expected = whole(torch.tensor([text])).logits[0][:, IDS]
    found = logits(folder, target, text)
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) < tolerance * float(expected.abs().max())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("make_target", [lambda: lean_target("int8", 4), lambda: lean_target("bfloat16", 4)])
def test_tokens_are_those_of_plain_decoding(
    folder: Path, temperature: float, make_target: Callable[[], Target]
) -> None:
    asks = mixed_asks(VOCAB, temperature, max_tokens=16)
    drafter = DraftModelDrafter(str(folder), draft_min_token_prob=0.0)
    engine = Engine(make_target(), drafter, num_speculative_tokens=4)
    pairs = zip(decode(engine, asks), decode_plainly(make_target, asks), strict=True)
    assert [difference(answer, plain) for answer, plain in pairs] == [None] * len(asks)


def test_the_stock_model_lends_its_table_too(tmp_path: Path) -> None:
    target = tiny_target()
    width = target.decoder.hidden_size
    small = student()
    if width != WIDTH:
        pytest.fail("the tiny targets have changed their width; make a student for them here")
    write_borrower(tmp_path, small, IDS, TargetFacts("tiny", None, width, VOCAB))
    assert bool(torch.isfinite(logits(tmp_path, target, [3, 4, 5])).all())


def test_its_output_layer_is_its_own_whatever_the_config_says(folder: Path) -> None:
    text = [3, 50, 7]
    before = [logits(folder, target, text) for target in (lean_target("int8"), tiny_target())]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    after = [logits(folder, target, text) for target in (lean_target("int8"), tiny_target())]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def rewritten(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "lacks the tensor model.norm.weight"),
        (lambda tensors: tensors.pop("draft_ids"), "lacks the tensor draft_ids"),
        (lambda tensors: tensors["draft_ids"].fill_(VOCAB), "below the target's vocabulary size"),
        (lambda tensors: tensors.update(draft_ids=IDS[1:].clone()), "must be as many"),
        (lambda tensors: tensors["model.norm.weight"].fill_(torch.nan), "NaN or infinite"),
        (lambda tensors: tensors.update(extra=torch.ones(2)), "has no place"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}), "of shape"),
    ],
)
def test_damaged_files_are_refused(folder: Path, change: Callable[[dict[str, Tensor]], None], sentence: str) -> None:
    with pytest.raises(LoadError, match=sentence):
        DraftModelDrafter(str(rewritten(folder, change))).bind(lean_target("int8"))


def test_another_targets_draft_model_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["foredraft_draft"]["vocab_size"] = 99
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match="vocabulary size 99"):
        DraftModelDrafter(str(folder)).bind(lean_target("int8"))


def test_its_folder_alone_names_the_method(folder: Path) -> None:
    assert method_of(str(folder)) is None  # no head: what remains is a draft model
    with pytest.raises(LoadError, match="a draft model, which method 'draft_model' runs, not a head"):
        read_head(str(folder))
