"""Training state on disk, whole or not at all, from which a killed run goes on as if nothing had happened."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from foredraft.errors import CapacityError, ConfigError
from foredraft.training.records import disk_errors

__all__ = ["load_checkpoint", "require_room", "save_checkpoint"]

NAME = "checkpoint.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Written aside, synced and renamed. Raises CapacityError if the disk is full; the one before is kept."""
    aside = folder / f"{NAME}.part"
    with disk_errors(folder, "the checkpoint before is kept"):
        try:
            with aside.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, folder / NAME)
        except RuntimeError as error:  # torch's zip writer reports a full disk in its own way
            raise CapacityError(
                f"{aside} can't be written ({str(error).splitlines()[0]}); the checkpoint before is kept. Make room "
                "and run the same command again"
            ) from error


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """None if there is none. Raises ConfigError for one that can't be read."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch and zipfile raise many kinds
        raise ConfigError(f"{path} can't be read ({type(error).__name__}); delete it to start again") from error
    return found if isinstance(found, dict) else None


def require_room(folder: Path, needed: int) -> None:
    """Raise CapacityError unless the disk has `needed` bytes free."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CapacityError(
            f"checkpoints need {needed / 1e9:.1f} GB on the disk of {folder}, which has {free / 1e9:.1f} GB free; make "
            "room, or take another folder"
        )
