"""Finds out what a model's name means, and brings the model to this machine if need be."""

from __future__ import annotations

from pathlib import Path

from foredraft.errors import LoadError
from foredraft.target.default_model import DEFAULT_MODEL_ALIAS, fetch_default_model
from foredraft.target.load_folder import gguf_in_folder, refuse_pickles
from foredraft.target.load_hub import fetch_from_hub, is_hub_id

__all__ = ["locate"]


def locate(
    model: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    offline: bool = False,
    weights: bool = True,
) -> Path:
    """The folder or .gguf file that `model` names; without `weights`, one with at least the tokenizer."""
    path = _existing(model)
    if revision is not None and (path is not None or model == DEFAULT_MODEL_ALIAS):
        raise LoadError(
            f"the revision {revision!r} is given for {model}, which doesn't come from the hub; leave it out"
        )
    if model == DEFAULT_MODEL_ALIAS:
        return fetch_default_model(offline=offline)
    if path is None:
        if not is_hub_id(model) or model.endswith(".gguf"):
            raise LoadError(
                f"{model!r} doesn't exist; pass a folder, a .gguf file, a hub id, or the alias {DEFAULT_MODEL_ALIAS!r}"
            )
        return fetch_from_hub(
            model, revision=revision, trust_remote_code=trust_remote_code, offline=offline, weights=weights
        )
    if path.is_dir():
        return gguf_in_folder(path) or path
    refuse_pickles(model, [path.name])
    if path.suffix == ".safetensors":
        raise LoadError(f"{model} is one file of a model; pass the folder that holds it and its config.json")
    return path


def _existing(model: str) -> Path | None:
    try:
        path = Path(model).expanduser()
        return path if model and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, an unknown user's home
        return None
