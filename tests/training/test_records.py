"""Shards survive kills, states stay beside their answers, and what isn't data is refused in a sentence."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from material import write_records

from foredraft.errors import CapacityError, ConfigError
from foredraft.training import records as module
from foredraft.training.counting import count_vocabulary
from foredraft.training.examples import batches, load_split
from foredraft.training.recording import Recorded
from foredraft.training.records import Record, RecordWriter, data_hash, read_records


def a_record(item: int, length: int = 6, temperature: float = 0.0) -> Record:
    return Record(item, "chat", [1, 2, item % 50 + 3], [item % 7 + 3] * length, temperature)


def test_records_come_back_in_order_over_several_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PER_SHARD", 4)
    written = [a_record(item) for item in range(10)]
    write_records(tmp_path, written[:5])
    write_records(tmp_path, written[5:])
    assert list(read_records(tmp_path)) == written
    assert [path.name for path in sorted(tmp_path.glob("part-*"))] == [f"part-0000{shard}.jsonl" for shard in range(3)]


@pytest.mark.parametrize("lost", [1, 5, 40])
def test_a_line_that_was_cut_off_is_written_again(tmp_path: Path, lost: int) -> None:
    write_records(tmp_path, [a_record(item) for item in range(4)])
    whole, before = data_hash(tmp_path), list(read_records(tmp_path))
    shard = tmp_path / "part-00000.jsonl"
    shard.write_bytes(shard.read_bytes()[:-lost])
    assert list(read_records(tmp_path)) == before[:3]
    writer = RecordWriter(tmp_path)
    assert (writer.records, writer.tokens) == (3, 18)
    writer.append(a_record(3))
    writer.close()
    assert data_hash(tmp_path) == whole


def test_states_are_found_again_even_behind_the_orphans_of_a_kill(tmp_path: Path) -> None:
    first, second = (torch.randn(rows, 2, 4).bfloat16() for rows in (5, 7))
    writer = RecordWriter(tmp_path)
    writer.append(a_record(0), Recorded(0, first))
    writer.close()
    with (tmp_path / module.STATES).open("ab") as file:
        file.write(b"never named by a line")
    writer = RecordWriter(tmp_path)
    writer.append(a_record(1), Recorded(2, second))
    writer.close()
    found = list(read_records(tmp_path))
    assert [record.start for record in found] == [0, 2]
    content = (tmp_path / module.STATES).read_bytes()
    for record, states in zip(found, (first, second), strict=True):
        assert record.place is not None
        stored = torch.frombuffer(bytearray(content[record.place :][: states.nbytes]), dtype=torch.bfloat16)
        assert torch.equal(stored.view(states.shape), states)


def test_a_full_disk_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordWriter(tmp_path)
    writer.append(a_record(0))
    writer.sync()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "fsync", full)
    monkeypatch.setattr(module, "SYNC_EVERY", 1)
    with pytest.raises(CapacityError, match=r"No space left on device\); the 1 answers before are kept"):
        writer.append(a_record(1))
    monkeypatch.undo()
    assert next(read_records(tmp_path)) == a_record(0)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "holds no training data"),
        ("not json\n", "line 1 of .* is no training record"),
        ('{"item": 1}\n', "line 1 of .* is no training record"),
        ('{"item":0,"kind":"x","prompt":[],"answer":[1],"temperature":0}\n', "line 1 of .* is no training record"),
    ],
)
def test_what_is_no_data_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    if content:
        (tmp_path / "part-00000.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        list(read_records(tmp_path))


def test_tokens_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    write_records(tmp_path, [a_record(1), Record(2, "chat", [1], [70, 3, 3, 3], 0.0)])
    with pytest.raises(ConfigError, match="has token 70 in an answer, and the model's vocabulary ends at 63"):
        load_split(tmp_path, 64, max_length=100)


def test_conversations_are_held_out_whole_and_greedy_ones_measured(tmp_path: Path) -> None:
    write_records(tmp_path, [a_record(item // 2, temperature=float(item % 2)) for item in range(800)])
    split = load_split(tmp_path, 64, max_length=100)
    held = {record.item for record in split.held_out}
    assert len(held) >= 5
    assert held.isdisjoint(record.item for record in split.train)
    assert {record.temperature for record in split.held_out} == {0.0}
    assert {record.temperature for record in split.train} == {0.0, 1.0}


def test_too_little_data_is_refused(tmp_path: Path) -> None:
    write_records(tmp_path, [a_record(1, length=2)])
    with pytest.raises(ConfigError, match="no answer of 4 tokens or more within 100"):
        load_split(tmp_path, 64, max_length=100)


def test_batches_hold_every_text_once_and_depend_on_the_seed_alone() -> None:
    lengths = [7, 30, 5, 12, 100, 9, 14]
    groups = list(batches(lengths, 40, 3, 1))
    assert sorted(index for group in groups for index in group) == list(range(7))
    assert all(sum(lengths[index] for index in group) <= 40 or len(group) == 1 for group in groups)
    assert groups == list(batches(lengths, 40, 3, 1))
    assert groups != list(batches(lengths, 40, 3, 2))


def test_the_draft_vocabulary_is_what_answers_use_most() -> None:
    records = [Record(0, "x", [50], [9, 9, 9, 4, 4, 30], 0.0)]
    assert count_vocabulary(records, 3, 64, always=(2,)).tolist() == [2, 4, 9]
    assert count_vocabulary(records, 5, 64).tolist() == [0, 1, 4, 9, 30]
    assert count_vocabulary(records, 100, 64).tolist() == list(range(64))
