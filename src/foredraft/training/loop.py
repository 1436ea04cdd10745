"""The training loop: the same for every kind of drafter.

Everything that a step does is a function of its number, the seed and the state that checkpoints hold, so a run that was
killed ends with the very weights of one that wasn't.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.training.acceptance import SimulatedAcceptance, simulate
from foredraft.training.checkpoints import load_checkpoint, require_room, save_checkpoint
from foredraft.training.examples import Split, batches, in_order
from foredraft.training.journal import Journal
from foredraft.training.padding import pad_linears
from foredraft.training.picks import greedy_picks
from foredraft.training.precision import mixed_precision
from foredraft.training.records import Record
from foredraft.training.target_states import StateSource
from foredraft.training.task import Task

__all__ = ["TrainPlan", "TrainProgress", "Trained", "train"]

EVALUATION_TOKENS = 2048
WARM_START_TOKENS = 15_000
BYTES_PER_TRAINED = 12
LOWEST_RATE = 0.01
"""The last step's learning rate over the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """How to train. A step is `accumulate` batches of at most `batch_tokens` tokens, prompts included.

    warmup              share of all steps in which the learning rate rises; then it falls along a cosine to a hundredth
    clip                largest norm of the gradient
    checkpoint_minutes  between checkpoints
    evaluations         how often the held-out texts are measured
    """

    epochs: float = 1.0
    batch_tokens: int = 512
    accumulate: int = 1
    learning_rate: float = 5e-4
    warmup: float = 0.05
    weight_decay: float = 0.01
    clip: float = 0.5
    seed: int = 0
    max_length: int = 1024
    checkpoint_minutes: float = 5.0
    evaluations: int = 6
    mixed_precision: bool = True

    def __post_init__(self) -> None:
        bounds = {
            "epochs": (1e-6, 1e4),
            "batch_tokens": (16, 1 << 20),
            "accumulate": (1, 4096),
            "learning_rate": (1e-8, 1.0),
            "warmup": (0.0, 0.9),
            "max_length": (8, 1 << 20),
            "checkpoint_minutes": (0.0, 1e4),
            "evaluations": (0, 10_000),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number from {low:g} to {high:g}")


class TrainProgress(NamedTuple):
    """step of steps; tokens: read in this run; seconds: of this run; what was measured last."""

    step: int
    steps: int
    tokens: int
    seconds: float
    loss: float
    learning_rate: float
    acceptance: SimulatedAcceptance | None


class Trained(NamedTuple):
    """history: one entry for each measurement; steps: in all; seconds: of all runs together."""

    history: list[dict[str, Any]]
    steps: int
    seconds: float
    acceptance: SimulatedAcceptance


def train(
    task: Task,
    source: StateSource,
    split: Split,
    plan: TrainPlan,
    folder: Path,
    identity: dict[str, Any],
    progress: Callable[[TrainProgress], None] = lambda _: None,
) -> Trained:
    """Train `task.module`, going on from the checkpoint in `folder` if there is one.

    `identity` is what a checkpoint must have been made with, else ConfigError. Raises CapacityError when the disk is
    full; the last checkpoint is kept then.
    """
    run = _Run(task, source, split, plan, folder, identity, progress)
    return run.work()


class _Run:
    def __init__(
        self,
        task: Task,
        source: StateSource,
        split: Split,
        plan: TrainPlan,
        folder: Path,
        identity: dict[str, Any],
        progress: Callable[[TrainProgress], None],
    ) -> None:
        self.task, self.source, self.split, self.plan, self.folder = task, source, split, plan, folder
        self.identity = {**identity, "kind": task.kind, "plan": _lasting(plan)}
        self.progress = progress
        pad_linears(task.module)
        self.parameters = [parameter for parameter in task.module.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay, fused=True
        )
        self.schedule = _schedule(split.train, plan)
        self.steps = len(self.schedule)
        self.step = 0
        self.seconds_before = 0.0
        self.history: list[dict[str, Any]] = []
        self.acceptance: SimulatedAcceptance | None = None
        self.picks: list[Tensor] | None = None
        require_room(folder, 2 * BYTES_PER_TRAINED * sum(parameter.numel() for parameter in self.parameters))
        self._restore()
        self.journal = Journal(folder)

    def work(self) -> Trained:
        plan, began = self.plan, time.monotonic()
        saved, tokens = began, 0
        every = max(1, self.steps // plan.evaluations) if plan.evaluations else self.steps + 1
        if self.step == 0:
            self.task.warm_start(self.source.examples(_up_to(self.split.train, WARM_START_TOKENS)))
        if self.step == 0 and plan.evaluations:
            self._measure(0.0)
        while self.step < self.steps:
            loss, read = self._one_step()
            tokens += read
            self.step += 1
            seconds = time.monotonic() - began
            if plan.evaluations and (self.step % every == 0 or self.step == self.steps):
                self._measure(loss)
            rate = self._rate(self.step - 1)
            self.journal.scalars(
                self.step, {"loss": loss, "learning_rate": rate, "tokens_per_second": tokens / seconds}
            )
            self.progress(TrainProgress(self.step, self.steps, tokens, seconds, loss, rate, self.acceptance))
            if time.monotonic() - saved >= plan.checkpoint_minutes * 60 or self.step == self.steps:
                self._save(self.seconds_before + seconds)
                saved = time.monotonic()
        self.journal.close()
        acceptance = self.acceptance or self._accepted()
        return Trained(self.history, self.steps, self.seconds_before + time.monotonic() - began, acceptance)

    def _one_step(self) -> tuple[float, int]:
        """The mean loss, and the tokens read."""
        task, plan = self.task, self.plan
        task.module.train()
        groups = self.schedule[self.step]
        total, tokens = 0.0, 0
        for part, group in enumerate(groups):
            examples = self.source.examples([self.split.train[index] for index in group])
            tokens += sum(len(example.tokens) for example in examples)
            with self._precision():
                loss = task.loss(examples, self.step / self.steps, self._seed(part))
            if loss.rows:
                (loss.total / len(groups)).backward()  # type: ignore[no-untyped-call]
                total += float(loss.total.detach()) / len(groups)
        if not math.isfinite(total):
            raise ConfigError(
                f"the loss became {total} at step {self.step + 1}; lower --learning-rate ({plan.learning_rate:g}) and "
                "start again in another folder"
            )
        torch.nn.utils.clip_grad_norm_(self.parameters, plan.clip)
        for settings in self.optimizer.param_groups:
            settings["lr"] = self._rate(self.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, tokens

    def _seed(self, part: int) -> int:
        """Of the randomness in one batch of the step."""
        return Random(f"{self.plan.seed}/{self.step}/{part}").getrandbits(62)

    def _rate(self, step: int) -> float:
        plan = self.plan
        rising = max(1, round(self.steps * plan.warmup))
        if step < rising:
            return plan.learning_rate * (step + 1) / rising
        share = (step - rising) / max(1, self.steps - rising)
        return plan.learning_rate * (LOWEST_RATE + (1 - LOWEST_RATE) * 0.5 * (1 + math.cos(math.pi * share)))

    def _measure(self, loss: float) -> None:
        self.acceptance = self._accepted()
        entry = {"step": self.step, "loss": round(loss, 5), **self.acceptance.as_dict()}
        self.history.append(entry)
        self.journal.entry(entry)

    def _accepted(self) -> SimulatedAcceptance:
        self.task.module.eval()
        if self.picks is None:
            self.picks = greedy_picks(self.source, self.split.held_out)
        found: list[Tensor] = []
        records = self.split.held_out
        for group in in_order([len(record.tokens) for record in records], EVALUATION_TOKENS):
            examples = self.source.examples([records[index] for index in group])
            with self._precision():
                found += self.task.matches(examples, [self.picks[index] for index in group])
        return simulate(found, self.task.depth)

    def _precision(self) -> AbstractContextManager[object]:
        return mixed_precision(self.parameters[0].device, self.plan.mixed_precision)

    def _save(self, seconds: float) -> None:
        save_checkpoint(
            self.folder,
            {
                "identity": self.identity,
                "step": self.step,
                "seconds": seconds,
                "history": self.history,
                "weights": {name: p for name, p in self.task.module.named_parameters() if p.requires_grad},
                "optimizer": self.optimizer.state_dict(),
            },
        )

    def _restore(self) -> None:
        found = load_checkpoint(self.folder)
        if found is None:
            return
        if found["identity"] != self.identity:
            different = sorted(key for key in self.identity if found["identity"].get(key) != self.identity[key])
            raise ConfigError(
                f"{self.folder} holds a checkpoint of a run with another {' and '.join(different) or 'setting'}; give "
                "the same arguments to go on with it, or another folder"
            )
        named = dict(self.task.module.named_parameters())
        with torch.no_grad():
            for name, weight in found["weights"].items():
                named[name].copy_(weight)
        self.optimizer.load_state_dict(found["optimizer"])
        self.step, self.seconds_before, self.history = found["step"], found["seconds"], found["history"]
        if self.history:
            last = self.history[-1]
            self.acceptance = SimulatedAcceptance(tuple(last["by_depth"]), last["acceptance_length"])


def _schedule(records: tuple[Record, ...], plan: TrainPlan) -> list[list[list[int]]]:
    """For each step, its batches of indices."""
    lengths = [min(len(record.tokens), plan.max_length) for record in records]
    groups: list[list[int]] = []
    for epoch in range(math.ceil(plan.epochs)):
        of_epoch = list(batches(lengths, plan.batch_tokens, plan.seed, epoch))
        share = min(1.0, plan.epochs - epoch)
        groups += of_epoch[: max(1, round(len(of_epoch) * share))]
    return [groups[first : first + plan.accumulate] for first in range(0, len(groups), plan.accumulate)]


def _up_to(records: tuple[Record, ...], tokens: int) -> list[Record]:
    chosen = []
    for record in records:
        chosen.append(record)
        tokens -= len(record.answer)
        if tokens <= 0:
            break
    return chosen


def _lasting(plan: TrainPlan) -> dict[str, Any]:
    """What two halves of a run must share."""
    free = ("checkpoint_minutes", "evaluations", "mixed_precision")
    return {name: value for name, value in asdict(plan).items() if name not in free}
