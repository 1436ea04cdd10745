"""Tells which format a checkpoint is in, by what is in it rather than by what it calls itself.

SafeAILab's EAGLE-3 heads say they are LlamaForCausalLM, like any model, so `architectures` decides nothing; keys that
only one format has and the names and widths of tensors do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from foredraft.errors import LoadError
from foredraft.heads.borrower import borrows
from foredraft.heads.info import Dialect

__all__ = ["detect", "eagle_name"]

UNREAD = {
    "peagle": "a P-EAGLE head (parallel positions with a mask token)",
    "dflash": "a DFlash block drafter",
    "dspark": "a DSpark block drafter",
    "mtp": "a multi-token-prediction layer",
    "eagle": "a speculators EAGLE-1 head, a format that its project has dropped",
}
READ = "EAGLE-1, 2 and 3, HASS and Medusa heads are read"
PREFIXES = ("module.", "model.")
EAGLE_NAMES = (
    ("midlayer.", "layers.0."),
    ("transformer.", "layers.0."),
    ("fusion_fc.", "fc."),
    ("enorm.", "embedding_layernorm."),
    ("hnorm.", "hidden_states_layernorm."),
)
MEDUSA_BLOCK = re.compile(r"(?:medusa_heads?\.)?\d+\.\d+\.linear\.weight")
VLLM_BLOCK = re.compile(r"(?:medusa_heads?\.)?blocks\.\d+\.layers\.\d+\.weight")


def eagle_name(name: str) -> str:
    """An EAGLE tensor's name in any format -> its name in `EagleHead`."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for theirs, ours in EAGLE_NAMES:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def detect(path: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Dialect:
    """Raises LoadError for what isn't a head, and for heads of a kind that isn't read."""
    if "foredraft_head" in config:
        return Dialect.FOREDRAFT
    if (kind := config.get("speculators_model_type")) is not None:
        if kind == "eagle3":
            return Dialect.SPECULATORS
        raise LoadError(f"{path} is {UNREAD.get(str(kind), f'a speculators {kind} head')}, which isn't read; {READ}")
    if "dflash_config" in config or any("markov_head." in name for name in shapes):
        raise LoadError(f"{path} is a block drafter (DFlash or DSpark), which isn't read; {READ}")
    if (medusa := _medusa(shapes)) is not None:
        return medusa
    names = {eagle_name(name): shape for name, shape in shapes.items()}
    fused = names.get("fc.weight")
    if fused is not None and len(fused) == 2 and any(name.startswith("layers.0.self_attn.") for name in names):
        if "layers.0.hidden_norm.weight" in names or "d2t" in names or fused[1] >= 3 * fused[0]:
            return _eagle3(config, shapes)
        return Dialect.HASS if "embedding_layernorm.weight" in names else Dialect.SAFEAILAB_EAGLE1
    raise LoadError(f"{path} is {_something_else(config, shapes)}, not a head; {READ}")


def _medusa(names: Iterable[str]) -> Dialect | None:
    names = list(names)
    if any(VLLM_BLOCK.fullmatch(name) for name in names):
        return Dialect.VLLM_MEDUSA
    blocks = [name for name in names if MEDUSA_BLOCK.fullmatch(name)]
    if not blocks:
        return None
    if blocks[0].startswith("medusa_heads."):
        return Dialect.MODELOPT_MEDUSA
    return Dialect.MEDUSA_MODEL if blocks[0].startswith("medusa_head.") else Dialect.MEDUSA_HEADS


def _eagle3(config: Mapping[str, Any], names: Iterable[str]) -> Dialect:
    nested = config.get("eagle_config")
    if isinstance(nested, dict) and ("use_last_layernorm" in nested or "next_layer_regular" in nested):
        return Dialect.MODELOPT_EAGLE
    theirs = any("Eagle3" in str(name) for name in config.get("architectures") or [])
    if theirs and not any(name.startswith("midlayer.") or name == "t2d" for name in names):
        return Dialect.MODELOPT_EAGLE
    return Dialect.SPECFORGE if theirs else Dialect.SAFEAILAB_EAGLE3


def _something_else(config: Mapping[str, Any], names: Iterable[str]) -> str:
    kind = config.get("model_type")
    if borrows(config):
        return "a draft model, which method 'draft_model' runs"
    if any(".layers." in f".{name}" for name in names):
        return f"a whole model of type {kind}" if kind else "a whole model"
    return "a checkpoint of an unknown kind"
