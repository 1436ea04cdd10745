"""Tells from a checkpoint which drafting method it is for, so that naming the model is enough.

Only headers and the configuration are looked at. A repository on the hub is looked into further than its configuration
if that looks like a head's; anything else is left to be a draft model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foredraft.errors import LoadError
from foredraft.heads.dialects import detect
from foredraft.heads.files import HeadFiles, find_head_files
from foredraft.heads.info import Dialect
from foredraft.target.load_cache import read_object

__all__ = ["method_of"]

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
TELLING_KEYS = {
    "foredraft_head",
    "speculators_model_type",
    "eagle_config",
    "dflash_config",
    "draft_vocab_size",
    "medusa_num_heads",
    "medusa",
}
MEDUSA = (Dialect.MEDUSA_HEADS, Dialect.MEDUSA_MODEL, Dialect.MODELOPT_MEDUSA, Dialect.VLLM_MEDUSA)
FIRST_GENERATION = (Dialect.SAFEAILAB_EAGLE1, Dialect.HASS)


def method_of(model: str, *, revision: str | None = None, allow_pickle: bool = False) -> str | None:
    """The method that runs the head in `model` (a folder, a file or a hub id); None if it is no head.

    Raises LoadError for a head that can't be read.
    """
    place = Path(model)
    if place.is_file() and place.suffix not in SUFFIXES:
        return None
    folder = place if place.is_dir() else place.parent
    config = read_object(folder / "config.json") if place.exists() else _remote_configuration(model, revision)
    told = bool(TELLING_KEYS & config.keys()) or any("agle3" in name for name in config.get("architectures") or [])
    if not place.exists() and not told and config.get("num_hidden_layers") != 1:
        return None
    try:
        files = find_head_files(model, revision=revision, allow_pickle=allow_pickle)
        return _method(detect(files.path, files.config, files.shapes), files)
    except LoadError:
        if told:
            raise
        return None


def _method(dialect: Dialect, files: HeadFiles) -> str:
    if dialect is Dialect.FOREDRAFT:
        shape = files.config.get("shape")
        first = isinstance(shape, Mapping) and shape.get("generation") == 1
        return "medusa" if files.config["foredraft_head"] == "medusa" else "eagle" if first else "eagle3"
    if dialect in MEDUSA:
        return "medusa"
    return "eagle" if dialect in FIRST_GENERATION else "eagle3"


def _remote_configuration(model: str, revision: str | None) -> dict[str, Any]:
    """{} if there is none, or no way to get it; opening the model will say why."""
    if not HUB_ID.fullmatch(model):
        return {}
    from huggingface_hub import hf_hub_download

    try:
        return read_object(Path(hf_hub_download(model, "config.json", revision=revision)))
    except Exception:  # the hub's client raises its own kinds and its HTTP library's
        return {}
