"""Reads a head, whatever project wrote it.

    head, info = read_head("path/or/hub-id", target=TargetFacts(name="...", layers=30, hidden=576, vocab_size=49152))

The dialect is found in the file's content; `info` says which it is, what was assumed and what stays in doubt until the
head is tried on text (`agreement.choose_interpretation`).
"""

from __future__ import annotations

from pathlib import Path

from foredraft.errors import LoadError
from foredraft.heads.dialects import detect
from foredraft.heads.eagle import EagleHead
from foredraft.heads.files import find_head_files
from foredraft.heads.info import Dialect, HeadInfo, TargetFacts, check_target
from foredraft.heads.medusa import MedusaHeads
from foredraft.heads.native import read_native
from foredraft.heads.read_eagle import read_eagle
from foredraft.heads.read_medusa import read_medusa

__all__ = ["read_head"]

MEDUSA = (Dialect.MEDUSA_HEADS, Dialect.MEDUSA_MODEL, Dialect.MODELOPT_MEDUSA, Dialect.VLLM_MEDUSA)


def read_head(
    path: str | Path,
    *,
    target: TargetFacts | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    offline: bool = False,
    aux_layers: tuple[int, ...] | None = None,
    norm_output: bool | None = None,
    norm_before_residual: bool | None = None,
) -> tuple[EagleHead | MedusaHeads, HeadInfo]:
    """A head in eval mode on the CPU, in the file's own dtype, and what is known about it.

    `path` is a folder, a file of weights or a hub id; `target` is checked against the head and supplies what the file
    leaves out. The last three keywords override an EAGLE file: tapped boundaries, and two flags. Raises LoadError, in
    one sentence, for a head of another target, for missing, misshapen or NaN tensors, for layers that the target
    doesn't have, and for files that are cut off, pickled or no head at all.
    """
    facts = target or TargetFacts()
    files = find_head_files(path, revision=revision, allow_pickle=allow_pickle, offline=offline)
    dialect = detect(files.path, files.config, files.shapes)
    overrides = (aux_layers, norm_output, norm_before_residual)
    head: EagleHead | MedusaHeads
    if dialect is Dialect.FOREDRAFT:
        head, info = read_native(files, facts)
    elif dialect in MEDUSA:
        head, info = read_medusa(files, dialect, facts)
    else:
        head, info = read_eagle(
            files,
            dialect,
            facts,
            aux_layers=aux_layers,
            norm_output=norm_output,
            norm_before_residual=norm_before_residual,
        )
        overrides = (None, None, None)
    if any(value is not None for value in overrides):
        raise LoadError(f"{path} is a {dialect} head, whose interpretation can't be overridden; drop those options")
    check_target(files.path, info.target, facts)
    return head, info
