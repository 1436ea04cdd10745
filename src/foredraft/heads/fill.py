"""Puts a checkpoint's tensors into a head, after checking that they are all there, of the right shape, and finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from foredraft.errors import LoadError
from foredraft.heads.files import HeadFiles

__all__ = ["check_finite", "fill"]

Head = TypeVar("Head", bound=nn.Module)


def fill(files: HeadFiles, build: Callable[[], Head], names: Mapping[str, str]) -> Head:
    """`build` makes the head; `names` maps its tensors to the file's. The weights keep the file's type, in eval mode
    and without gradients. Raises LoadError for tensors that are missing, superfluous, misshapen, or hold NaN."""
    with torch.device("meta"):  # no memory for random weights that are replaced at once
        head = build()
    wanted = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    if lost := sorted(set(wanted) - set(names)):
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise LoadError(f"{files.path} lacks the tensor {lost[0]}{more}; download it again")
    if strange := sorted(set(names) - set(wanted)):
        raise LoadError(f"{files.path} holds {names[strange[0]]}, which has no place in a head of its kind")
    for name, shape in wanted.items():
        found = files.shapes[names[name]]
        if found != shape:
            raise LoadError(f"{files.path} holds {names[name]} of shape {list(found)} where {list(shape)} is expected")
    stored = files.take(set(names.values()))
    check_finite(files.path, stored)
    head.load_state_dict({name: stored[original] for name, original in names.items()}, assign=True)
    return head.eval().requires_grad_(False)


def check_finite(path: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise LoadError if a weight is NaN or infinite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            raise LoadError(
                f"{path} holds {count} weights in {name} that are NaN or infinite; download or train it again"
            )
