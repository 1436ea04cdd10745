"""Writes a checkpoint's two files, each aside first and then renamed, so that a full disk or a kill leaves what was
there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

__all__ = ["save_checkpoint", "save_tensors"]


def save_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """model.safetensors and config.json in `folder`, which may exist. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "model.safetensors", tensors)
    path = folder / "config.json"
    aside = _aside(path)
    aside.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    os.replace(aside, path)


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Raises OSError."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in ready.items():  # safetensors refuses two names for the same memory
        if tensor.data_ptr() in seen:
            ready[name] = tensor.clone()
        seen.add(tensor.data_ptr())
    aside = _aside(path)
    save_file(ready, aside, metadata={"format": "pt"})
    os.replace(aside, path)


def _aside(path: Path) -> Path:
    return path.with_name(path.name + ".part")
