"""int8 storage of checkpoints: a matrix becomes levels from -127 to 127 and one float32 scale for each row, under the
name `NAME.scale`.

Rows read back are exactly level x scale, so that quantising them again gives the same levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from foredraft.heads.files import HeadFiles

__all__ = ["from_levels", "to_levels"]

SCALE = ".scale"


def to_levels(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices of numbers as levels and scales; vectors and ids as they are."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2:
            stored[name] = tensor
            continue
        rows = tensor.float()
        scale = rows.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        stored[name] = (rows / scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8)
        stored[name + SCALE] = scale
    return stored


def from_levels(files: HeadFiles) -> HeadFiles:
    """The same files with scales multiplied in, as float32; what is stored without scales stays as it is."""
    scaled = {name.removesuffix(SCALE) for name in files.shapes if name.endswith(SCALE)}
    shapes = {name: shape for name, shape in files.shapes.items() if not name.endswith(SCALE)}

    def take(names: Iterable[str]) -> dict[str, Tensor]:
        wanted = list(names)
        stored = files.take([*wanted, *(name + SCALE for name in wanted if name in scaled)])
        return {
            name: stored[name].float() * stored[name + SCALE].unsqueeze(1) if name in scaled else stored[name]
            for name in wanted
        }

    return HeadFiles(files.path, files.config, shapes, take)
