"""Where a drafter comes from: what was run, with which versions, on which data."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foredraft import __version__
from foredraft.training.loop import TrainPlan
from foredraft.training.opening import TrainingTarget
from foredraft.training.options import DrafterOptions
from foredraft.training.records import data_hash, read_manifest

__all__ = ["identity_of", "provenance_of"]


def identity_of(target: TrainingTarget, data: Path, options: DrafterOptions) -> dict[str, Any]:
    """What both halves of an interrupted run must have in common."""
    return {"model": target.prepared.fingerprint, "data": data_hash(data), "options": _plain(asdict(options))}


def provenance_of(
    target: TrainingTarget, data: Path, options: DrafterOptions, plan: TrainPlan, records: int, tokens: int
) -> dict[str, Any]:
    """For provenance.json and the card."""
    import torch
    import transformers

    return {
        "command": sys.argv,
        "versions": {
            "foredraft": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
        },
        "machine": {"processor": platform.machine(), "system": platform.system(), "threads": torch.get_num_threads()},
        "target": {
            "name": target.prepared.name,
            "fingerprint": target.prepared.fingerprint,
            "weights": target.decoder.weight_format,
        },
        "data": {
            "sha256": data_hash(data),
            "answers": records,
            "answer_tokens": tokens,
            "recipe": read_manifest(data),
        },
        "options": _plain(asdict(options)),
        "plan": _plain(asdict(plan)),
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Enumerations as their values."""
    return {name: str(value) if isinstance(value, str) else value for name, value in values.items()}
