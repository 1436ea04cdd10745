"""Every kind of drafter learns, is written, and drafts the same tokens that plain decoding writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from foredraft.engine.llm import LLM
from foredraft.heads.info import TargetFacts
from foredraft.training.distill import DistillTask
from foredraft.training.loop import Trained, TrainPlan
from foredraft.training.losses import Objective
from foredraft.training.opening import TrainingTarget
from foredraft.training.options import DrafterOptions, Kind
from foredraft.training.run import Beginning, run_training
from foredraft.training.target_states import TargetMatrices
from foredraft.types import SamplingParams

PLAN = TrainPlan(epochs=25, batch_tokens=400, learning_rate=5e-3, evaluations=2, checkpoint_minutes=60)
OPTIONS = {
    "eagle3": DrafterOptions(steps=3, draft_vocab_size=64),
    "eagle3 lk": DrafterOptions(steps=3, draft_vocab_size=64, objective=Objective.LK, norm_output=True),
    "eagle": DrafterOptions(steps=2, draft_vocab_size=64, classification=1.0),
    "medusa": DrafterOptions(draft_vocab_size=64, heads=3),
    "medusa low_rank": DrafterOptions(draft_vocab_size=64, heads=3, form="low_rank", rank=16),
    "medusa own": DrafterOptions(draft_vocab_size=64, heads=3, form="own"),
    "draft": DrafterOptions(layers=1, draft_vocab_size=64),
}


def trained(name: str, target: TrainingTarget, answers: Path, folder: Path) -> tuple[Trained, Beginning, list[float]]:
    known: list[Beginning] = []
    losses: list[float] = []
    done = run_training(
        Kind(name.split()[0]),
        target,
        answers,
        folder,
        OPTIONS[name],
        PLAN,
        begin=known.append,
        progress=lambda state: losses.append(state.loss),
    )
    return done, known[0], losses


@pytest.mark.parametrize("name", OPTIONS)
def test_it_learns_and_drafts(
    name: str,
    training_target: TrainingTarget,
    answers: Path,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("foredraft.training.eagle_task.SINGLE", 0.0)  # so that first and last losses are of one kind
    done, known, losses = trained(name, training_target, answers, tmp_path)
    first, *_, last = done.history
    assert sum(losses[-5:]) < 0.93 * sum(losses[:5])  # the target's own uncertainty is part of it
    gained = last["acceptance_length"] - first["acceptance_length"]
    assert gained > 0.1 or (gained >= 0 and first["acceptance_length"] > 3)
    assert done.acceptance.length == pytest.approx(last["acceptance_length"], abs=1e-3)
    assert known.stored == known.records

    prompt = [5, 40, 90, 41]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    [plain] = LLM(str(tiny_checkpoint)).generate(prompt, params)
    kind = name.split()[0]
    for folder in [tmp_path, tmp_path / "lean"] if kind == "draft" else [tmp_path]:
        config = {"method": "draft_model" if kind == "draft" else kind, "model": str(folder), "controller": "off"}
        [drafted] = LLM(str(tiny_checkpoint), speculative_config=config).generate(prompt, params)
        assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids
        assert drafted.outputs[0].speculative_decoding.drafted > 0

    card = (tmp_path / "README.md").read_text()
    assert f"Acceptance length {done.acceptance.length:.2f}" in card
    provenance = json.loads((tmp_path / "provenance.json").read_text())
    assert provenance["data"]["answers"] == known.records
    assert provenance["acceptance"]["acceptance_length"] == pytest.approx(done.acceptance.length, abs=1e-4)


def test_states_that_were_not_kept_are_computed(training_target: TrainingTarget, answers: Path, tmp_path: Path) -> None:
    from foredraft.training.records import read_manifest, read_records
    from foredraft.training.target_states import StateSource

    source = StateSource(answers, training_target.decoder, (1, -1), 200)
    records = [record for record in read_records(answers) if record.place is not None][:5]
    assert not any(record.start for record in records)  # the whole prompt's are kept
    kept = source.examples(records)
    row = 2 * len(read_manifest(answers)["taps"]) * training_target.decoder.hidden_size
    late = [replace(record, start=3, place=record.place + 3 * row) for record in records]
    forgetful = StateSource(tmp_path, training_target.decoder, (1, -1), 200)
    computed = [*forgetful.examples(records), *source.examples(late)]
    for own, other in zip([*kept, *kept], computed, strict=True):
        assert own.tokens.tolist() == other.tokens.tolist()
        assert own.answer == other.answer
        scale = float(other.states.abs().max())
        assert torch.allclose(own.states, other.states, atol=0.01 * scale)


@pytest.mark.parametrize(("family", "lean"), [("llama", True), ("gemma2", False)])
def test_only_what_can_borrow_is_written_to_borrow(family: str, lean: bool, tmp_path: Path) -> None:
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 1}
    config = CONFIG_MAPPING[family](vocab_size=64, hidden_size=32, intermediate_size=48, **sizes)
    student = AutoModelForCausalLM.from_config(config)
    matrices = TargetMatrices(torch.zeros(64, 32), torch.zeros(64, 32))
    task = DistillTask(student, None, matrices, torch.arange(40), TargetFacts())
    task.save(tmp_path, {})
    assert (tmp_path / "lean" / "model.safetensors").is_file() == lean
    assert task.usage(None)["model"] == ("lean" if lean else "")
