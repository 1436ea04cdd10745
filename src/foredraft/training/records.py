"""Training data on disk: conversations as token ids, in append-only shards that survive a kill at any byte.

A folder holds data.json (what made the data) and part-00000.jsonl, part-00001.jsonl, ...; a line is one `Record`. A
writer that was killed leaves at most one unfinished line, which the next one cuts off.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from foredraft.errors import CapacityError, ConfigError
from foredraft.training.recording import Recorded

__all__ = [
    "STATES",
    "Record",
    "RecordWriter",
    "data_hash",
    "disk_errors",
    "read_manifest",
    "read_records",
    "write_manifest",
]

MANIFEST = "data.json"
STATES = "states.bin"
PER_SHARD = 4096
SYNC_EVERY = 16


@dataclass(frozen=True, slots=True)
class Record:
    """An answer of the target, its end token included, to a prompt.

    item   number of the conversation
    start  position from which on the target's states are kept, up to the last token but one
    place  where they begin in states.bin, in bytes; None if they aren't kept
    """

    item: int
    kind: str
    prompt: list[int]
    answer: list[int]
    temperature: float
    start: int = 0
    place: int | None = None

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer


class disk_errors:  # noqa: N801 - used like a function
    """A context in which a full or read-only disk becomes one sentence. `kept` says what is safe."""

    def __init__(self, path: Path, kept: str) -> None:
        self.path, self.kept = path, kept

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise CapacityError(
                f"{self.path} can't be written ({error.strerror}); {self.kept}. Make room and run the same command "
                "again"
            ) from error


class RecordWriter:
    """Appends to a folder's shards. `records` and `tokens` count what is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = self.tokens = 0
        self._unsynced = 0
        with disk_errors(folder, "nothing was written yet"):
            folder.mkdir(parents=True, exist_ok=True)
            shards = _shards(folder)
            if shards:
                _cut_unfinished(shards[-1])
            for record in read_records(folder, missing_ok=True):
                self._count(record)
            self._file = self._shard().open("ab")
            self._states = (folder / STATES).open("ab")

    def append(self, record: Record, states: Recorded | None = None) -> None:
        """Write one line, and the states of its tokens. Raises CapacityError when the disk is full; everything before
        is kept."""
        with disk_errors(self.folder, f"the {self.records} answers before are kept"):
            if states is not None:
                place = self._states.seek(0, os.SEEK_END)
                self._states.write(states.states.contiguous().view(torch.uint8).numpy().tobytes())
                record = replace(record, start=states.start, place=place)
            if self.records and self.records % PER_SHARD == 0:
                self.sync()
                self._file.close()
                self._file = self._shard().open("ab")
            self._file.write(json.dumps(asdict(record), separators=(",", ":")).encode() + b"\n")
            self._unsynced += 1
            if self._unsynced >= SYNC_EVERY:
                self.sync()
        self._count(record)

    def sync(self) -> None:
        self._states.flush()  # first: a line must never point at states that aren't there
        os.fsync(self._states.fileno())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unsynced = 0

    def close(self) -> None:
        with disk_errors(self.folder, f"the answers before the last {SYNC_EVERY} are kept"):
            self.sync()
        self._file.close()
        self._states.close()

    def _count(self, record: Record) -> None:
        self.records += 1
        self.tokens += len(record.answer)

    def _shard(self) -> Path:
        return self.folder / f"part-{self.records // PER_SHARD:05d}.jsonl"


def read_records(folder: Path, *, missing_ok: bool = False) -> Iterator[Record]:
    """All records in their order; an unfinished last line is left out. Raises ConfigError for a folder without data or
    a line that is none."""
    shards = _shards(folder)
    if not shards and not missing_ok:
        raise ConfigError(f"{folder} holds no training data (part-*.jsonl); make some with `foredraft train data`")
    for shard in shards:
        with shard.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    record = Record(**json.loads(line))
                    assert record.prompt
                    assert record.answer
                except (ValueError, TypeError, AssertionError) as error:
                    raise ConfigError(f"line {number} of {shard} is no training record; remove the line") from error
                yield record


def data_hash(folder: Path) -> str:
    """SHA-256 over the shards' bytes, in their order."""
    digest = hashlib.sha256()
    for shard in _shards(folder):
        digest.update(shard.read_bytes())
    return digest.hexdigest()


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What data.json says, None without one."""
    try:
        found = json.loads((folder / MANIFEST).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / MANIFEST} can't be read ({error}); restore it or take another folder") from error
    return found if isinstance(found, dict) else None


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    with disk_errors(folder, "nothing was written yet"):
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{MANIFEST}.part"
        draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
        draft.replace(folder / MANIFEST)


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.jsonl"))


def _cut_unfinished(shard: Path) -> None:
    content = shard.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with shard.open("r+b") as file:
            file.truncate(whole)
