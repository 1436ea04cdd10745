"""Converts a GGUF file once into an ordinary Hugging Face folder in the cache, and finds it there afterwards.

The folder holds config.json, generation_config.json, the tokenizer and model.safetensors in the wanted dtype. It is
keyed by the file's content, so a renamed file is found and a changed one is converted again. Weights stream from file
to file, one slice at a time; the result can be memory-mapped, tensor by tensor, by whatever wants float weights without
holding a second copy.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from foredraft.errors import LoadError
from foredraft.target.gguf_file import GgufFile, GgufTensor, read_gguf, tensor_slices
from foredraft.target.gguf_models import find_architecture, parameter_name, transformers_config, undo_rearrangement
from foredraft.target.gguf_tokenizer import build_tokenizer, special_id, stop_token_ids, wrap_tokenizer
from foredraft.target.load_cache import cache_root, content_digest, fresh_folder, read_manifest, seal_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["convert_gguf", "gguf_tokenizer"]

FORMAT = 1  # raise it whenever a converted folder's content changes
ALIGNMENT = 64  # bytes; vector loads of mapped weights start on a cache line
STORED_AS = {
    torch.float64: torch.float32,
    torch.float32: torch.float32,
    torch.float16: torch.float16,
    torch.bfloat16: torch.bfloat16,
}
SAFETENSORS_NAME = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}

logger = logging.getLogger(__name__)


def convert_gguf(path: Path, dtype: torch.dtype) -> Path:
    """The cached folder with the file's model in `dtype` (float64 is kept as float32, which holds the same values)."""
    stored = STORED_AS[dtype]
    name = f"{content_digest(path)[:32]}-{SAFETENSORS_NAME[stored].lower()}-v{FORMAT}"
    folder = cache_root() / "gguf" / name
    if read_manifest(folder) is not None:
        return folder
    logger.info("converting %s to %s", path, folder)
    file = read_gguf(path)
    with fresh_folder(folder) as unfinished:
        _write_configuration(file, stored, unfinished)
        wrap_tokenizer(file, build_tokenizer(file)).save_pretrained(unfinished)
        _write_weights(file, stored, unfinished / "model.safetensors")
        seal_folder(unfinished, {"source": path.name})
    return folder


def gguf_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The file's tokenizer alone, without touching the weights."""
    file = read_gguf(path)
    return wrap_tokenizer(file, build_tokenizer(file))


def _write_configuration(file: GgufFile, dtype: torch.dtype, folder: Path) -> None:
    special = {f"{role}_token_id": special_id(file, key) for role, key in (("bos", "bos"), ("pad", "padding"))}
    special["eos_token_id"] = special_id(file, "eos")
    config = transformers_config(file) | special | {"dtype": str(dtype).removeprefix("torch.")}
    _write_json(folder / "config.json", config)
    generation = special | {"eos_token_id": stop_token_ids(file) or None}
    _write_json(
        folder / "generation_config.json", {key: value for key, value in generation.items() if value is not None}
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _write_weights(file: GgufFile, dtype: torch.dtype, path: Path) -> None:
    """Stream every tensor into a safetensors file: length of the header, JSON header, data (hf.co/docs/safetensors)."""
    parameters = _parameters(file)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in parameters.items():
        start, end = end, end + tensor.elements * dtype.itemsize
        header[name] = {"dtype": SAFETENSORS_NAME[dtype], "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in parameters.values():
            for values in _checkpoint_values(file, tensor):
                out.write(values.to(dtype).view(torch.uint8).numpy().data)


def _parameters(file: GgufFile) -> dict[str, GgufTensor]:
    parameters: dict[str, GgufTensor] = {}
    for tensor in file.tensors.values():
        name = parameter_name(file, tensor.name)
        if name is not None:
            parameters[name] = tensor
    lost = [name for name in ("model.embed_tokens.weight", "model.norm.weight") if name not in parameters]
    if lost:
        raise LoadError(
            f"{file.path} lacks {lost[0]} of {find_architecture(file).class_name}; pass the model's own .gguf file"
        )
    return parameters


def _checkpoint_values(file: GgufFile, tensor: GgufTensor) -> Iterator[torch.Tensor]:
    restore = undo_rearrangement(file, tensor.name)
    for values in tensor_slices(file, tensor, whole=restore is not None):
        yield torch.from_numpy((values if restore is None else restore(values)).copy(order="C"))
