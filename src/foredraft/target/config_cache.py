"""Configurations as transformers read them before. Its class for an architecture imports more than a whole start on the
lean decoder needs (a second and 60 MB), and all it adds to config.json are defaults, which are kept here. That pays for
a .gguf file; a folder's tokenizer may import the class all the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.target.llama_shape import FAMILIES
from foredraft.target.load_cache import note_path, read_object, write_note

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = ["recall_config", "remember_config"]


def recall_config(folder: Path) -> PreTrainedConfig | None:
    """The folder's configuration with all its values, but of transformers' base class; None if it isn't known."""
    values = read_object(_note(folder))
    if not values:
        return None
    from transformers.configuration_utils import PreTrainedConfig

    return PreTrainedConfig(**values)


def remember_config(folder: Path, config: PreTrainedConfig) -> None:
    """Keep it for later starts, if it is one that the lean decoder may serve."""
    if config.model_type in FAMILIES:
        write_note(_note(folder), json.loads(config.to_json_string(use_diff=False)))


def _note(folder: Path) -> Path:
    """Its name changes with the file and with what reads it."""
    import transformers

    return note_path("configurations", transformers.__version__ + (folder / "config.json").read_text())
