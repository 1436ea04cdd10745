"""`foredraft inspect` and `foredraft export`, on a tiny target and heads made for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoints import write_folder
from command_line import Cli
from models import tiny_model, tiny_target
from safetensors.torch import load_file, save_file
from tiny_checkpoint import save_tiny_checkpoint

from foredraft.cli.target_weights import weights_of_target
from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.heads.info import TargetFacts
from foredraft.heads.medusa import MedusaHeads, MedusaShape
from foredraft.heads.write import write_head


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def vocabulary(target: Path) -> int:
    size = json.loads((target / "config.json").read_text())["vocab_size"]
    assert isinstance(size, int)
    return size


@pytest.fixture
def eagle(tmp_path: Path, vocabulary: int) -> Path:
    torch.manual_seed(1)
    head = EagleHead(EagleShape(3, 32, 32, 4, 2, 8, 48, vocabulary, vocabulary, (1, 2)))
    return write_head(head, tmp_path / "eagle", form="sglang", target=TargetFacts("a tiny target"))


@pytest.fixture
def medusa(tmp_path: Path, vocabulary: int) -> Path:
    heads = MedusaHeads(MedusaShape(2, 32, vocabulary, vocabulary))  # untrained: the identity, and the target's layer
    return write_head(heads, tmp_path / "medusa")


def test_inspect(cli: Cli, eagle: Path) -> None:
    outcome = cli("inspect", eagle)
    assert outcome.code == 0
    assert "EAGLE-3, in the format SpecForge/SGLang EAGLE-3" in outcome.out
    assert "a tiny target" in outcome.out
    assert "the inputs of layers 1, 2" in outcome.out
    assert f'--speculative-config \'{{"method": "eagle3", "model": "{eagle}"}}\'' in outcome.out


def test_inspect_tries_the_head_on_its_target(cli: Cli, eagle: Path, medusa: Path, target: Path) -> None:
    report = cli("inspect", eagle, "--target", target, "--json").json
    assert report["method"] == "eagle3"
    assert report["shape"]["aux_layers"] == [1, 2]
    trial = report["trial"]
    assert trial["tokens"] > 50
    assert len(trial["agreement"]) == 3
    assert len(trial["tried"]) > 3  # an untrained head agrees by chance only, so every reading was tried
    assert trial["agreement"] == trial["tried"][trial["reading"]]
    assert "by draft depth" in cli("inspect", eagle, "--target", target).out


def test_inspect_compares_with_the_targets_own_text(cli: Cli, medusa: Path, target: Path) -> None:
    from foredraft.cli.head_trial import read_text
    from foredraft.engine.open_target import EngineArgs, open_target

    text = read_text(open_target(EngineArgs(model=str(target), max_num_seqs=1)).target, (-1, 0, 1))
    assert torch.equal(text.picks[-20:-1], text.tokens[-19:])  # the answer is greedy
    assert torch.equal(text.picks, text.head(text.taps[-1]).argmax(dim=1))
    torch.testing.assert_close(text.embed(text.tokens).float(), text.taps[0].float())
    # an identity head with the target's output layer guesses for later tokens what the target says for the next one
    shares = [float((text.picks[: -1 - head] == text.picks[1 + head :]).double().mean()) for head in range(2)]
    assert cli("inspect", medusa, "--target", target, "--json").json["trial"]["agreement"] == shares


def test_export(cli: Cli, eagle: Path, medusa: Path, target: Path, tmp_path: Path, vocabulary: int) -> None:
    assert cli("export", eagle, "--format", "speculators", "--output", tmp_path / "out").out == f"{tmp_path / 'out'}\n"
    assert "speculators eagle3" in cli("inspect", tmp_path / "out").out
    sentence = cli("export", medusa, "--format", "vllm-medusa", "--output", tmp_path / "vllm").sentence
    assert "pass --target" in sentence
    done = cli("export", medusa, "--format", "vllm-medusa", "--output", tmp_path / "vllm", "--target", target)
    assert done.code == 0
    copied = load_file(tmp_path / "vllm" / "model.safetensors")["lm_heads.0.weight"]
    torch.testing.assert_close(copied, load_file(target / "model.safetensors")["lm_head.weight"].float())
    assert "vLLM Medusa" in cli("inspect", tmp_path / "vllm", "--target", target).out


def test_a_head_is_no_draft_model(cli: Cli, eagle: Path, medusa: Path, target: Path) -> None:
    for head, method in ((eagle, "eagle3"), (medusa, "medusa")):
        sentence = cli("generate", target, "hi", "--spec-method", "draft_model", "--spec-model", head).sentence
        assert f"{head} is a drafting head, not a draft model; run it with method '{method}'" in sentence
    assert "is no language model: its config.json names no model_type" in cli("generate", medusa, "hi").sentence


def test_bad_input(cli: Cli, eagle: Path, target: Path, tmp_path: Path) -> None:
    assert "'gguf' is no format" in cli("export", eagle, "--format", "gguf", "--output", tmp_path / "x").sentence
    assert "a whole model of type llama, not a head" in cli("inspect", target).sentence
    assert "doesn't exist" in cli("inspect", tmp_path / "nowhere").sentence
    assert "the revision 'foo' is given" in cli("inspect", eagle, "--revision", "foo").sentence
    assert "--dtype is 'int4', which is for the target" in cli("inspect", eagle, "--dtype", "int4").sentence
    assert "'int4' is unknown" in cli("inspect", eagle, "--dtype", "int4", "--target", target).sentence
    config = json.loads((eagle / "config.json").read_text())
    (eagle / "config.json").write_text(json.dumps({**config, "eagle_aux_hidden_state_layer_ids": [2, 3]}))
    assert "only 0 to 2 exist" in cli("inspect", eagle, "--target", target).sentence
    weights = load_file(eagle / "model.safetensors")
    weights["norm.weight"][0] = float("nan")
    save_file(weights, eagle / "model.safetensors")
    assert "NaN" in cli("inspect", eagle).sentence
    other = save_tiny_checkpoint(tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    heads = MedusaHeads(MedusaShape(1, 48, config["vocab_size"], config["vocab_size"]))
    sentence = cli("inspect", write_head(heads, tmp_path / "wide"), "--target", target).sentence
    assert "hidden size 48" in sentence
    assert "has 32" in sentence


@pytest.fixture(scope="module")
def soft_capped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("soft-capped"), family="gemma2", head_dim=8, vocab_size=64)


def test_soft_capped_logits_are_no_matrix_to_copy(cli: Cli, tmp_path: Path, soft_capped: Path) -> None:
    heads = write_head(MedusaHeads(MedusaShape(2, 32, 64, 64)), tmp_path / "medusa")
    arguments = ("export", heads, "--output", tmp_path / "out", "--target", soft_capped, "--format")
    sentence = cli(*arguments, "vllm-medusa").sentence
    assert "soft-capping" in sentence
    assert "write the head as foredraft" in sentence
    assert not (tmp_path / "out").exists()
    assert cli(*arguments, "foredraft").code == 0


@pytest.mark.parametrize("family", ["llama", "granite"])
def test_the_output_layer_is_read_through_its_products(family: str) -> None:
    """Scaled logits are those of a scaled matrix."""
    target = tiny_target(family)
    weights = weights_of_target(target)
    assert weights.output is not None
    model = tiny_model(family)
    scale = getattr(model.config, "logits_scaling", 1.0)
    assert torch.allclose(weights.output.double(), model.get_output_embeddings().weight / scale, atol=1e-5)
    assert weights_of_target(tiny_target("gemma2"), output=False).output is None
