"""Heads that come with the package, and for which target each was trained.

`shipped/NAME/target.json` says what the target looks like; beside it, each folder holds a checkpoint named for the
method that runs it. A model of the same shape and vocabulary that was tuned further may use them, too: drafts can only
be slow, never wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

from foredraft.heads.info import TargetFacts

__all__ = ["shipped_head"]

FOLDER = Path(__file__).parent / "shipped"


def shipped_head(method: str, target: TargetFacts) -> Path | None:
    """The folder of the head for that method and target, None if there is none."""
    for description in sorted(FOLDER.glob("*/target.json")):
        known = json.loads(description.read_text("utf-8"))
        same = (known["hidden"], known["layers"], known["tokenizer"]) == (
            target.hidden,
            target.layers,
            target.tokenizer,
        )
        if same and (description.parent / method / "config.json").is_file():
            return description.parent / method
    return None
