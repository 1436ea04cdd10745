"""What the training tests work with: a tiny target's answers, and examples without any target."""

from __future__ import annotations

from pathlib import Path

import torch

from foredraft.engine.llm import LLM
from foredraft.training.data import DataPlan, make_data
from foredraft.training.examples import Example
from foredraft.training.recording import usual_taps
from foredraft.training.records import Record, RecordWriter

TOPICS = ("rain", "bread", "the moon", "a lost key", "trains", "two cats", "numbers", "the sea")


def write_prompts(folder: Path, count: int = 24) -> Path:
    """A file of prompts that differ from one another."""
    path = folder / "prompts.txt"
    path.write_text("".join(f"{number}: tell me of {TOPICS[number % len(TOPICS)]}\n" for number in range(count)))
    return path


def make_answers(model: Path, folder: Path, *, tokens: int = 700, kept: bool = True, seed: int = 0) -> Path:
    """Data of greedy answers, of 30 tokens at most, to 24 prompts."""
    from foredraft.training.prompts import read_prompts

    folder.mkdir(parents=True, exist_ok=True)
    llm = LLM(str(model), max_num_seqs=8)
    taps = usual_taps(llm.target) if kept else ()
    prompts = read_prompts(write_prompts(folder))
    make_data(llm, folder, DataPlan(tokens, seed, 30, (0.0,), prompts, taps), lambda _: None)
    return folder


def random_example(
    length: int, answer: int, *, taps: int = 4, hidden: int = 16, vocab: int = 60, seed: int = 0
) -> Example:
    """Random tokens and states."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab, (length,), generator=generator)
    states = torch.randn(length - 1, taps, hidden, generator=generator)
    return Example(tokens, answer, states)


def write_records(folder: Path, records: list[Record]) -> None:
    writer = RecordWriter(folder)
    for record in records:
        writer.append(record)
    writer.close()
