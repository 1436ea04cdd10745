"""Builds Medusa heads from a checkpoint in any dialect. Heads and layers are counted from the tensors: published
configurations say 2 heads where the files hold 5."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from foredraft.errors import LoadError
from foredraft.heads.config import Config
from foredraft.heads.draft_vocabulary import read_draft_ids
from foredraft.heads.files import HeadFiles
from foredraft.heads.fill import fill
from foredraft.heads.info import Dialect, HeadInfo, TargetFacts
from foredraft.heads.medusa import MedusaHeads, MedusaShape

__all__ = ["read_medusa"]

PREFIX = re.compile(r"medusa_heads?\.")
BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
OUTPUT = re.compile(r"(\d+)\.(\d+)\.weight")
VLLM_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
VLLM_OUTPUT = re.compile(r"lm_heads\.(\d+)\.weight")


def read_medusa(files: HeadFiles, dialect: Dialect, target: TargetFacts) -> tuple[MedusaHeads, HeadInfo]:
    """Raises LoadError, naming what is missing or wrong."""
    whole = Config(files.path, files.config)
    vllm = dialect is Dialect.VLLM_MEDUSA
    theirs = _vllm_names(whole, files) if vllm else _names(files, dialect)
    first = theirs.get("blocks.0.layers.0.weight")
    if first is None:
        raise LoadError(f"{files.path} has Medusa heads but no first one; download it again")
    hidden = files.shapes[first][0]
    places = [found for name in theirs if (found := VLLM_BLOCK.fullmatch(name))]
    heads = max(int(found[1]) for found in places) + 1
    layers = max(int(found[2]) for found in places) + 1
    output = theirs.get("lm_heads.0.weight")
    stated = whole.whole("vocab_size")
    rows = files.shapes[output][0] if output else stated or target.vocab_size
    if rows is None:
        raise LoadError(f"{files.path} doesn't say how large the target's vocabulary is; add vocab_size to config.json")
    vocab_size = stated or target.vocab_size or rows if vllm else rows
    narrowed = "token_map" in files.shapes and not (output and rows == vocab_size)  # logits of all tokens need no map
    draft_vocab_size = files.shapes["token_map"][0] if narrowed and not output else rows
    shape = MedusaShape(
        heads=heads,
        hidden=hidden,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        layers=layers,
        bias="blocks.0.layers.0.bias" in theirs,
        output="own" if output else "target",
    )
    vocabulary = files.take(["token_map"]) if narrowed else {}
    draft_ids = read_draft_ids(files.path, vocabulary, draft_vocab_size, vocab_size)
    loaded = fill(files, lambda: MedusaHeads(shape, draft_ids), theirs)
    notes = []
    listed = whole.whole("medusa_num_heads") or whole.whole("num_heads")
    if listed is not None and listed != heads:
        notes.append(f"config.json says {listed} heads, the file holds {heads}")
    scale = whole.number("logit_scale", 1.0)
    if scale != 1.0 and loaded.lm_heads is not None:
        with torch.no_grad():
            for parameter in loaded.lm_heads.parameters():  # each once, if heads share it
                parameter.mul_(scale)
        notes.append(f"the logit scale {scale:g} is multiplied into the output layers")
    ours = TargetFacts.from_json(whole.part("foredraft").found.get("target"))
    name = ours.name or whole.text("base_model_name_or_path", "")
    facts = TargetFacts(name, ours.layers, hidden, vocab_size, ours.tokenizer)
    return loaded, HeadInfo(files.path, dialect, "medusa", facts, notes=tuple(notes))


def _names(files: HeadFiles, dialect: Dialect) -> dict[str, str]:
    """Our names -> the file's, for the formats whose tensors are numbered only. A whole model's others don't count."""
    stripped = {PREFIX.sub("", name, count=1): name for name in files.shapes if _belongs(name, dialect)}
    theirs = {
        f"blocks.{found[1]}.layers.{found[2]}.{found[3]}": name
        for short, name in stripped.items()
        if (found := BLOCK.fullmatch(short))
    }
    outputs = {
        f"lm_heads.{found[1]}.weight": name for short, name in stripped.items() if (found := OUTPUT.fullmatch(short))
    }
    return theirs | outputs


def _belongs(name: str, dialect: Dialect) -> bool:
    return dialect is Dialect.MEDUSA_HEADS or PREFIX.match(name) is not None


def _vllm_names(whole: Config, files: HeadFiles) -> dict[str, str]:
    stripped: Mapping[str, str] = {PREFIX.sub("", name, count=1): name for name in files.shapes}
    theirs = {
        short: name for short, name in stripped.items() if VLLM_BLOCK.fullmatch(short) or VLLM_OUTPUT.fullmatch(short)
    }
    if whole.flag("original_lm_head", False):  # one output layer serves all heads
        shared = stripped.get("lm_heads.0.weight") or stripped.get("lm_head.weight")
        count = len({found[1] for name in theirs if (found := VLLM_BLOCK.fullmatch(name))})
        theirs |= {f"lm_heads.{head}.weight": shared for head in range(count)} if shared else {}
    return theirs
