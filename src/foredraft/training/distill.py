"""Trains a draft model: a few of the target's own layers, distilled until they guess what the whole target says.

The student has the target's embedding, output layer and final norm and evenly spaced layers of it, the first and the
last among them; embedding and output layer stay as they are. Its loss is the divergence from the target's distribution.

A complete model is written that anything can load and, if it is Llama-shaped, in `lean/` one that borrows the target's
embedding table and has the output rows of the draft vocabulary only, which is a quarter of the size and drafts faster.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from foredraft.errors import ConfigError
from foredraft.heads.borrower import write_borrower
from foredraft.heads.info import TargetFacts
from foredraft.heads.save import save_tensors
from foredraft.target.llama_shape import Unsupported, read_shape
from foredraft.training.acceptance import SimulatedAcceptance, chained
from foredraft.training.examples import Example
from foredraft.training.losses import Objective, token_losses
from foredraft.training.recording import LAST
from foredraft.training.records import disk_errors
from foredraft.training.target_states import TargetMatrices
from foredraft.training.task import StepLoss, draft_mask, draft_matrix, make_labels

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["DistillTask", "chosen_layers", "new_student"]

DEPTH = 5
LEAN = "lean"


def chosen_layers(total: int, wanted: int) -> tuple[int, ...]:
    """`wanted` of `total` layers, evenly spaced from the first to the last."""
    if not 1 <= wanted < total:
        raise ConfigError(f"the draft model is to have {wanted} of the target's {total} layers; give 1 to {total - 1}")
    if wanted == 1:
        return (0,)
    return tuple(round(index * (total - 1) / (wanted - 1)) for index in range(wanted))


def new_student(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Cut `model` (float32, used up) down to some of its layers. Raises ConfigError for an unknown architecture."""
    stack = getattr(model.base_model, "layers", None)
    if not isinstance(stack, nn.ModuleList):
        raise ConfigError(f"{type(model).__name__} keeps its layers in no list that can be cut; train an EAGLE-3 head")
    config: Any = model.config
    kept = chosen_layers(len(stack), layers)
    base: Any = model.base_model
    base.layers = nn.ModuleList(stack[index] for index in kept)
    for index, layer in enumerate(base.layers):
        attention = getattr(layer, "self_attn", None)
        if attention is not None and hasattr(attention, "layer_idx"):
            attention.layer_idx = index
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index] for index in kept]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("embed" not in name and "lm_head" not in name)
    return model


class DistillTask:
    """`label_ids` [Vl] restricts the distributions that are compared, and what the lean form drafts."""

    kind = "draft"
    taps = (LAST,)
    depth = DEPTH

    def __init__(
        self,
        student: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        matrices: TargetMatrices,
        label_ids: Tensor | None,
        facts: TargetFacts,
        objective: Objective = Objective.KL,
    ) -> None:
        self.module: nn.Module = student
        self._facts = facts
        self._lean = _is_llama_shaped(student)
        self.student, self.tokenizer, self.objective = student, tokenizer, objective
        self._labels = draft_matrix(matrices, label_ids)
        self._ids = label_ids
        self._mask = draft_mask(matrices, label_ids)

    def warm_start(self, examples: Sequence[Example]) -> None:
        return None  # it starts as the target

    def loss(self, examples: Sequence[Example], progress: float, seed: int) -> StepLoss:
        device = self._labels.device
        labels = make_labels(
            self._labels,
            self._mask,
            torch.cat([example.states[example.first :, -1] for example in examples]).to(device),
            torch.cat([example.tokens[example.first + 1 :] for example in examples]).to(device),
        )
        kept = labels.drafted.nonzero().squeeze(1)
        if not len(kept):
            return StepLoss(torch.zeros((), device=device), 0)
        logits = self._hidden(examples)[kept] @ self._labels.t()
        each = token_losses(self.objective, labels.probabilities[kept], logits, progress)
        return StepLoss(each.mean(), len(kept))

    @torch.no_grad()
    def matches(self, examples: Sequence[Example], picks: Sequence[Tensor]) -> list[Tensor]:
        best = (self._hidden(examples) @ self._labels.t()).argmax(dim=-1)
        guesses = (best if self._ids is None else self._ids[best]).cpu()
        found = []
        for example, picked, guess in zip(examples, picks, torch.split(guesses, self._sizes(examples)), strict=True):
            right = guess == picked[example.first :]
            found.append(chained(right[1:], self.depth))  # the first draft comes behind the answer's first token
        return found

    def save(self, folder: Path, provenance: dict[str, Any]) -> None:
        with disk_errors(folder, "the last checkpoint is kept"):
            folder.mkdir(parents=True, exist_ok=True)
            config: Any = copy.deepcopy(self.student.config)
            config.dtype = torch.bfloat16
            config.save_pretrained(folder)
            tied = bool(config.get_text_config().tie_word_embeddings)
            weights = {
                name: tensor.to("cpu", torch.bfloat16)
                for name, tensor in self.student.state_dict().items()
                if not (tied and name == "lm_head.weight")
            }
            save_tensors(folder / "model.safetensors", weights)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
            (folder / "training.json").write_text(json.dumps(provenance, indent=2) + "\n", "utf-8")
            if self._lean:
                ids = torch.arange(config.vocab_size) if self._ids is None else self._ids
                write_borrower(folder / LEAN, self.student, ids, self._facts)

    def usage(self, acceptance: SimulatedAcceptance | None) -> dict[str, Any]:
        return {"method": "draft_model", "num_speculative_tokens": 4, "model": LEAN if self._lean else ""}

    def activation_bytes(self, tokens: int) -> int:
        config: Any = self.student.config
        layer: int = 16 * config.hidden_size + 4 * config.intermediate_size
        return 4 * tokens * (int(config.num_hidden_layers) * layer + 4 * len(self._labels))

    def _hidden(self, examples: Sequence[Example]) -> Tensor:
        """The student's states behind its final norm, of the tokens from `first` on but the last: [R, H]."""
        device = self._labels.device
        longest = max(len(example.tokens) - 1 for example in examples)
        tokens = torch.zeros(len(examples), longest, dtype=torch.long)
        for row, example in zip(tokens, examples, strict=True):
            row[: len(example.tokens) - 1] = example.tokens[:-1]
        base: Any = self.student.base_model
        # padding comes last, and no token sees what comes after it
        output = base(input_ids=tokens.to(device), use_cache=False).last_hidden_state
        parts = [output[row, ex.first : len(ex.tokens) - 1] for row, ex in enumerate(examples)]
        return torch.cat(parts)

    @staticmethod
    def _sizes(examples: Sequence[Example]) -> list[int]:
        return [len(example.tokens) - 1 - example.first for example in examples]


def _is_llama_shaped(model: PreTrainedModel) -> bool:
    """Whether a decoder can run it over another one's embedding table."""
    try:
        read_shape(model.config, model.state_dict())
    except Unsupported:
        return False
    return True
