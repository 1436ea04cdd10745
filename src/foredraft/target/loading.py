"""Loads a target (or a draft model) from whatever names it: an alias, a .gguf file, a folder, or a hub id.

`prepare_target` finds the checkpoint and everything the engine needs to know about it; `load_target` adds the stock
transformers model, which a start on the lean decoder has no need to build. Whatever goes
wrong is a LoadError (a CapacityError when memory runs out) of one sentence that names the value and the remedy, with
the cause attached.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from foredraft.errors import ConfigError, LoadError
from foredraft.target.gguf import convert_gguf, gguf_tokenizer
from foredraft.target.gguf_file import read_gguf, weight_kind
from foredraft.target.load_checkpoint import (
    explained,
    load_config,
    load_generation_defaults,
    load_model,
    load_tokenizer_files,
)
from foredraft.target.load_folder import Checkpoint, inspect_folder
from foredraft.target.load_source import locate

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["DTYPES", "LoadedModel", "PreparedModel", "load_target", "load_tokenizer", "prepare_target"]

DTYPES = {
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "float32": torch.float32,
    "float64": torch.float64,
}
# what "auto" means by the stored dtype; a quantised .gguf file has none of these
AUTO = {"f16": torch.bfloat16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
AUTO_FOR_QUANTISED = torch.float32


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A checkpoint that was found and checked, and what the engine must know about it.

    name                 what the caller asked for
    checkpoint           folder with config.json and the safetensors files; for a .gguf file, its converted copy
    config               transformers' configuration
    dtype                of the float weights
    dtype_chosen         whether the caller asked for that dtype
    quantised            whether the checkpoint stores quantised weights (a .gguf file of at most 8 bits)
    fingerprint          changes whenever weights, configuration or dtype may have changed
    max_model_len        longest prompt + output in tokens
    generation_defaults  the checkpoint's own generation_config.json, if it has one
    eos_token_ids        every id that ends a text, sorted
    weight_format        how the weights are stored: "bf16", "f32", "gguf-q4_1", ...
    """

    name: str
    checkpoint: Checkpoint
    config: PreTrainedConfig
    dtype: torch.dtype
    dtype_chosen: bool
    quantised: bool
    tokenizer: PreTrainedTokenizerBase
    fingerprint: str
    max_model_len: int
    generation_defaults: GenerationConfig | None
    eos_token_ids: tuple[int, ...]
    weight_format: str
    trust_remote_code: bool

    @property
    def path(self) -> Path:
        return self.checkpoint.folder

    def build_network(self, attn_implementation: str = "eager") -> PreTrainedModel:
        """The stock transformers model, in eval mode; no parameter requires a gradient."""
        with explained(self.name):
            return load_model(self.checkpoint, self.dtype, attn_implementation, self.trust_remote_code)


@dataclass(frozen=True, kw_only=True)
class LoadedModel(PreparedModel):
    """A prepared checkpoint with its stock model."""

    model: PreTrainedModel


def prepare_target(
    model: str,
    *,
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    max_model_len: int | None = None,
    offline: bool = False,
) -> PreparedModel:
    """Find a causal language model and all that is known about it, without building it.

    model                an alias ("smollm2-135m"), a .gguf file, a folder, or a hub id
    dtype                a name in `DTYPES`, or "auto": bfloat16 for 16-bit weights, float32 for a quantised .gguf file
    revision             branch, tag or commit of a hub id
    trust_remote_code    run Python code that comes with the checkpoint
    max_model_len        at most the model's own limit, which is the default
    offline              never touch the network

    Raises ConfigError for a bad dtype or length, LoadError for all about the model, CapacityError for lack of memory.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown; use one of auto, {', '.join(DTYPES)}")
    if max_model_len is not None and max_model_len < 1:
        raise ConfigError(f"max_model_len is {max_model_len} and must be at least 1; leave it out for the model's own")
    source = locate(model, revision=revision, trust_remote_code=trust_remote_code, offline=offline)
    converted = source.is_file()
    with explained(model):
        if converted:
            stored = weight_kind(read_gguf(source))
            chosen = DTYPES.get(dtype, AUTO.get(stored, AUTO_FOR_QUANTISED))
            checkpoint = inspect_folder(convert_gguf(source, chosen), converted=True)
        else:
            checkpoint = inspect_folder(source, trust_remote_code=trust_remote_code)
            stored = checkpoint.stored_dtype.lower()
            chosen = DTYPES.get(dtype, AUTO.get(stored, torch.bfloat16))
        config = load_config(checkpoint.folder, trust_remote_code)
        tokenizer = load_tokenizer_files(checkpoint.folder, as_written=converted, trust_remote_code=trust_remote_code)
        defaults = load_generation_defaults(checkpoint.folder)
    return PreparedModel(
        name=model,
        checkpoint=checkpoint,
        config=config,
        dtype=chosen,
        dtype_chosen=dtype != "auto",
        quantised=converted and stored not in AUTO,
        tokenizer=tokenizer,
        fingerprint=_fingerprint(checkpoint, converted, chosen),
        max_model_len=_context_length(model, config.get_text_config(), max_model_len),
        generation_defaults=defaults,
        eos_token_ids=_end_tokens(defaults, config.get_text_config(), tokenizer),
        weight_format=f"gguf-{stored}" if converted else stored,
        trust_remote_code=trust_remote_code,
    )


def load_target(
    model: str,
    *,
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    max_model_len: int | None = None,
    offline: bool = False,
    attn_implementation: str = "eager",
) -> LoadedModel:
    """Like `prepare_target`, with the stock model; `attn_implementation` is handed to transformers."""
    prepared = prepare_target(
        model,
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
        max_model_len=max_model_len,
        offline=offline,
    )
    facts = {field.name: getattr(prepared, field.name) for field in fields(prepared)}
    return LoadedModel(**facts, model=prepared.build_network(attn_implementation))


def load_tokenizer(
    model: str, *, revision: str | None = None, trust_remote_code: bool = False, offline: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer alone, of anything that `load_target` accepts; a folder needs no weights for it."""
    with explained(model):
        source = locate(model, revision=revision, trust_remote_code=trust_remote_code, offline=offline, weights=False)
        if source.is_file():
            return gguf_tokenizer(source)
        return load_tokenizer_files(source, as_written=False, trust_remote_code=trust_remote_code)


def _context_length(name: str, config: Any, wanted: int | None) -> int:
    limits = (getattr(config, key, None) for key in ("max_position_embeddings", "n_positions"))
    own = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
    if own is not None and wanted is not None and wanted > own:
        raise ConfigError(f"max_model_len {wanted} is more than the {own} tokens that {name} can hold; lower it")
    if own is None and wanted is None:
        raise LoadError(f"{name} doesn't say how long a text it can hold; pass max_model_len")
    return wanted or own or 0


def _end_tokens(*holders: Any) -> tuple[int, ...]:
    ends: set[int] = set()
    for holder in holders:
        found = getattr(holder, "eos_token_id", None)
        ends.update(found if isinstance(found, list) else [] if found is None else [found])
    return tuple(sorted(ends))


def _fingerprint(checkpoint: Checkpoint, converted: bool, dtype: torch.dtype) -> str:
    """Configuration, dtype and weights; of weights the name, size and time stamp, as reading them would take long.

    A converted folder is named by its file's content, which says it all.
    """
    digest = hashlib.sha256(f"{dtype} ".encode())
    digest.update((checkpoint.folder / "config.json").read_bytes())
    if converted:
        digest.update(checkpoint.folder.name.encode())
    else:
        for path in checkpoint.weights:
            status = path.stat()
            digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]
