"""What a run writes down while it goes: a line of JSON for each measurement, and TensorBoard's files if it is there."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foredraft.training.records import disk_errors

__all__ = ["Journal"]

LOG = "history.jsonl"


class Journal:
    """`folder`/history.jsonl, and `folder`/tensorboard where the package tensorboard is installed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOG
        self._board: Any = None
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            writer: Any = SummaryWriter
            self._board = writer(str(folder / "tensorboard"))

    def entry(self, measured: dict[str, Any]) -> None:
        """A measurement; a resumed run may write one twice."""
        with disk_errors(self._path, "the last checkpoint is kept"), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(measured) + "\n")
        if self._board is not None:
            self._board.add_scalar("acceptance_length", measured["acceptance_length"], measured["step"])
            for depth, share in enumerate(measured["by_depth"], start=1):
                self._board.add_scalar(f"right_at_depth/{depth}", share, measured["step"])

    def scalars(self, step: int, values: dict[str, float]) -> None:
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
