"""Trains EAGLE heads of both generations: the same steps, with the losses of each.

EAGLE-3 learns the target's distribution at every step of its training-time test (arXiv 2503.01840). EAGLE-1 learns the
target's next state by regression and its distribution at a smaller weight (arXiv 2401.15077), with noise on the states
it reads; with more than one step it learns from its own states, too (HASS, arXiv 2408.15766).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from foredraft.heads.eagle import EagleHead
from foredraft.heads.info import TargetFacts
from foredraft.heads.write import write_head
from foredraft.training.acceptance import SimulatedAcceptance
from foredraft.training.chains import chain_steps, each_chain
from foredraft.training.eagle import fit_input
from foredraft.training.eagle3_start import start_linear
from foredraft.training.examples import Example
from foredraft.training.losses import Objective, token_losses
from foredraft.training.padding import padded
from foredraft.training.recording import LAST
from foredraft.training.target_states import TargetMatrices
from foredraft.training.task import Labels, StepLoss, draft_mask, draft_matrix, make_labels

__all__ = ["EagleLosses", "EagleTask"]

DEPTH = 5
SINGLE = 0.35
"""Share of the training in which drafts are one step long. No later guess counts where the first one is wrong, and so
the steps are spent on that first, at less than half the cost; at equal time the first guess was right more often."""
SCALES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18)
NOISE_LENGTH = 512
"""EAGLE-1's noise is scaled by this over the text's length."""


@dataclass(frozen=True, slots=True)
class EagleLosses:
    """steps: of the training-time test; decay: weight of a step over that of the one before; regression and
    classification: EAGLE-1's two weights; noise: largest size of EAGLE-1's uniform noise on the states."""

    objective: Objective = Objective.KL
    steps: int = 4
    decay: float = 0.8
    regression: float = 0.0
    classification: float = 1.0
    noise: float = 0.0


class EagleTask:
    """`labels_ids` [Vl] restricts the distributions that are compared; for a head with a reduced vocabulary it is that
    vocabulary."""

    def __init__(
        self,
        head: EagleHead,
        losses: EagleLosses,
        matrices: TargetMatrices,
        label_ids: Tensor | None,
        facts: TargetFacts,
    ) -> None:
        shape = head.shape
        self.kind = "eagle" if shape.generation == 1 else "eagle3"
        self.module = head
        self.head, self.losses, self.facts = head, losses, facts
        self.taps = shape.aux_layers if LAST in shape.aux_layers else (*shape.aux_layers, LAST)
        self.depth = DEPTH
        self._embedding = matrices.embedding
        self._labels = draft_matrix(matrices, label_ids)
        self._ids = label_ids
        self._mask = draft_mask(matrices, label_ids)

    def warm_start(self, examples: Sequence[Example]) -> None:
        embeddings, states, following = self._transitions(examples)
        if self.head.shape.generation == 1:
            fit_input(self.head, embeddings, states[:, 0], following)
        else:
            start_linear(self.head, embeddings, states, following)
            self._temper(examples[: len(examples) // 10 + 1])

    def loss(self, examples: Sequence[Example], progress: float, seed: int) -> StepLoss:
        losses, head = self.losses, self.head
        labels = self._labels_of(examples)
        goals = [example.states[:, -1].to(self._device) for example in examples]
        total, weight, weights, counted = torch.zeros((), device=self._device), 1.0, 0.0, 0
        features = head.fuse(self._features(examples, seed))
        for step in chain_steps(head, examples, features, self._embed, 1 if progress < SINGLE else losses.steps):
            texts = zip(labels, step.after, examples, strict=True)
            wanted = _joined([text.part(_shifted(after, example)) for text, after, example in texts])
            kept = wanted.drafted.nonzero().squeeze(1)
            if len(kept):
                logits = self._logits(step.states[kept])
                each = token_losses(losses.objective, wanted.probabilities[kept], logits, progress)
                total = total + weight * losses.classification * each.mean()
            if losses.regression:
                goal = torch.cat([goal[after] for goal, after in zip(goals, step.after, strict=True)])
                states = step.states if head.norm is None else head.norm(step.states)
                total = total + weight * losses.regression * smooth_l1_loss(states, goal)
            counted += len(kept) if step.step == 0 else 0
            weights += weight
            weight *= losses.decay
        return StepLoss(total / max(weights, 1e-9), counted)

    @torch.no_grad()
    def matches(self, examples: Sequence[Example], picks: Sequence[Tensor]) -> list[Tensor]:
        found = [torch.zeros(max(0, ex.rows - ex.first), self.depth, dtype=torch.bool) for ex in examples]
        features = self.head.fuse(self._features(examples, None))
        for step in chain_steps(self.head, examples, features, self._embed, self.depth):
            best = self._logits(step.states).argmax(dim=-1)
            guesses = best if self._ids is None else self._ids[best]
            for index, (guess, after) in enumerate(zip(each_chain(guesses.cpu(), step.after), step.after, strict=True)):
                found[index][: len(guess), step.step] = guess == picks[index][after]
        return found

    def save(self, folder: Path, provenance: dict[str, Any]) -> None:
        write_head(self.head, folder, form="foredraft", target=self.facts, extra={"training": provenance})

    def usage(self, acceptance: SimulatedAcceptance | None) -> dict[str, Any]:
        return {"method": self.kind, "num_speculative_tokens": 4}

    def activation_bytes(self, tokens: int) -> int:
        shape, steps = self.head.shape, self.losses.steps
        vocabulary = len(self._labels)
        return 4 * tokens * ((steps + 1) * (12 * shape.hidden + 4 * shape.intermediate) + vocabulary * (1 + 3 * steps))

    def _transitions(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
        """Of the rows that draft: next tokens' embeddings [R, H], tapped states [R, taps, Ht], next states [R, Ht]."""
        places = [self.taps.index(layer) for layer in self.head.shape.aux_layers]
        spans = [(example, slice(example.first, example.rows)) for example in examples]
        return (
            self._embed(torch.cat([ex.tokens[1:][span] for ex, span in spans]).to(self._device)),
            torch.cat([ex.states[span][:, places] for ex, span in spans]).to(self._device),
            torch.cat([ex.states[1:][span, -1] for ex, span in spans]).to(self._device),
        )

    @torch.no_grad()
    def _temper(self, examples: Sequence[Example]) -> None:
        """Scale the final norm, and so all logits, to the smallest loss: a linear guess is surer than it is right."""
        if self.head.norm is None:
            return
        weight = self.head.norm.weight
        full = weight.clone()
        losses = {}
        for scale in SCALES:
            weight.copy_(full * scale)
            losses[scale] = float(self.loss(examples, 0.0, 0).total)
        weight.copy_(full * min(losses, key=losses.__getitem__))

    @property
    def _device(self) -> torch.device:
        return self._embedding.device

    def _embed(self, tokens: Tensor) -> Tensor:
        return self._embedding[tokens]

    def _logits(self, states: Tensor) -> Tensor:
        """[R, H] -> over the label vocabulary."""
        if self.head.lm_head is not None:
            return self.head.logits(states)
        return padded(lambda rows: rows @ self._labels.t(), states)

    def _features(self, examples: Sequence[Example], seed: int | None) -> Tensor:
        """[sum of rows, taps, Ht], noisy if EAGLE-1 trains."""
        places = [self.taps.index(layer) for layer in self.head.shape.aux_layers]
        features = []
        generator = torch.Generator().manual_seed(seed) if seed is not None else None
        for example in examples:
            states = example.states[: example.rows, places]
            if generator is not None and self.losses.noise:
                noise = (torch.rand(states.shape, generator=generator) * 2 - 1) * self.losses.noise
                states = states + noise * NOISE_LENGTH / max(len(example.tokens), NOISE_LENGTH)
            features.append(states)
        return torch.cat(features).to(self._device)

    def _labels_of(self, examples: Sequence[Example]) -> list[Labels]:
        """For each text, of its tokens from `first + 1` on, all but the last."""
        states = torch.cat([example.states[example.first + 1 :, -1] for example in examples]).to(self._device)
        following = torch.cat([example.tokens[example.first + 2 :] for example in examples]).to(self._device)
        labels = make_labels(self._labels, self._mask, states, following)
        sizes = [len(example.tokens) - 2 - example.first for example in examples]
        ends = torch.tensor(sizes).cumsum(0).tolist()
        return [labels.part(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def _shifted(after: slice, example: Example) -> slice:
    """Indices of tokens -> of labels, which begin behind the first drafting row."""
    begin = example.first + 1
    return slice(cast(int, after.start) - begin, cast(int, after.stop) - begin)


def _joined(parts: list[Labels]) -> Labels:
    return Labels(torch.cat([part.probabilities for part in parts]), torch.cat([part.drafted for part in parts]))
