"""Looks at a model folder before transformers does: what can't work is refused in a sentence, never half loaded.

Only JSON is read, and of every safetensors file its header: enough to tell a truncated download, a missing shard,
pickled weights, an encoder-decoder, or a quantisation that this engine doesn't run.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.errors import LoadError

__all__ = ["Checkpoint", "gguf_in_folder", "inspect_folder", "refuse_pickles", "safetensors_files"]

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
# parts of the class names of models that write text; a bare "...Model" may still have a tied head
WRITES_TEXT = ("CausalLM", "LMHead", "ConditionalGeneration")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder worth loading: its config.json, its safetensors files, and the dtype of most of their bytes ("BF16")."""

    folder: Path
    config: dict[str, Any]
    weights: tuple[Path, ...]
    stored_dtype: str


def inspect_folder(folder: Path, *, trust_remote_code: bool = False, converted: bool = False) -> Checkpoint:
    """Check a folder's configuration and weights; LoadError says what is wrong with them.

    What foredraft converted itself is of a known type, and asking transformers about it would cost half a second.
    """
    config = _read_object(
        folder / "config.json", f"{folder} has no config.json; pass a folder in Hugging Face format, or a .gguf file"
    )
    if not converted:
        _check_config(folder, config, trust_remote_code)
    weights = safetensors_files(folder)
    bytes_of: Counter[str] = Counter()
    for path in weights:
        bytes_of.update(_read_header(path))
    if not bytes_of:
        raise LoadError(f"{folder} holds safetensors without a single tensor; download the model again")
    return Checkpoint(folder, config, weights, bytes_of.most_common(1)[0][0])


def safetensors_files(folder: Path) -> tuple[Path, ...]:
    """The weight files of a folder, every shard in place; LoadError says what is there instead."""
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    if (folder / INDEX).is_file():
        names = _read_object(folder / INDEX, "").get("weight_map")
        if not isinstance(names, dict) or not names:
            raise LoadError(f"{folder / INDEX} has no weight_map; download it again")
        shards = tuple(folder / str(name) for name in sorted(set(names.values())))
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise LoadError(
                f"{folder} lacks {len(missing)} of {len(shards)} weight files, such as {missing[0]}; download it again"
            )
        return shards
    refuse_pickles(str(folder), [path.name for path in sorted(folder.iterdir())])
    if (folder / "adapter_config.json").is_file():
        raise LoadError(f"{folder} is an adapter without its base model; merge the two with peft's `merge_and_unload`")
    raise LoadError(f"{folder} has no weights ({SINGLE} or {INDEX}); download the model again")


def refuse_pickles(model: str, names: list[str]) -> None:
    """Raise the refusal if there are pickled weights among the file names."""
    pickled = [name for name in names if name.endswith(PICKLES) and name not in ("training_args.bin", "optimizer.bin")]
    if pickled:
        raise LoadError(
            f"{model} holds only pickled weights ({pickled[0]}), and opening one can run any code; if you trust it, "
            "convert it to safetensors with `AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)`"
        )


def gguf_in_folder(folder: Path) -> Path | None:
    """The folder's one .gguf file if it is what the folder is about; None if there are safetensors, or no .gguf."""
    files = sorted(folder.glob("*.gguf"))
    if not files or (folder / SINGLE).is_file() or (folder / INDEX).is_file():
        return None
    if len(files) > 1:
        raise LoadError(
            f"{folder} holds {len(files)} .gguf files; pass one of them: {', '.join(file.name for file in files[:6])}"
        )
    return files[0]


def _check_config(folder: Path, config: dict[str, Any], trust_remote_code: bool) -> None:
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    kind = config.get("model_type")
    remote = isinstance(config.get("auto_map"), dict)
    if remote and trust_remote_code:
        return
    if not isinstance(kind, str) and not remote:
        raise LoadError(
            f"{folder} is no language model: its config.json names no model_type; pass a model's folder (whether it is "
            "a drafting head, `foredraft inspect` says)"
        )
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        remedy = (
            "its own code is needed, which --trust-remote-code allows"
            if remote
            else "upgrade transformers if the model is new"
        )
        raise LoadError(f"{folder} is of the model type {kind!r}, which this transformers doesn't know; {remedy}")
    if config.get("is_encoder_decoder"):
        raise LoadError(
            f"{folder} is an encoder-decoder ({kind}), which foredraft can't run; pass a decoder-only language model"
        )
    names = [name for name in config.get("architectures") or [] if isinstance(name, str)]
    writes = not names or any(name.endswith("Model") or part in name for name in names for part in WRITES_TEXT)
    if CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING or not writes:
        raise LoadError(
            f"{folder} is a {', '.join(names) or kind}, which doesn't write text; pass a causal language model"
        )
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        method = quantised.get("quant_method", "an unnamed method")
        raise LoadError(
            f"{folder} is quantised by {method}, which can't be run; pass the unquantised checkpoint or a .gguf file"
        )


def _read_header(path: Path) -> Counter[str]:
    """Bytes of tensors per dtype, once the header is found to describe exactly the file that is there."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if 8 + length <= size else b""
    bytes_of: Counter[str] = Counter()
    end = 0
    try:
        for name, tensor in json.loads(text).items():
            if name != "__metadata__":
                start, stop = tensor["data_offsets"]
                bytes_of[str(tensor["dtype"])] += stop - start
                end = max(end, stop)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{path} is damaged: its safetensors header can't be read; download it again") from error
    if 8 + length + end != size:
        raise LoadError(f"{path} is cut off or damaged: {size:,} of {8 + length + end:,} bytes; download it again")
    return bytes_of


def _read_object(path: Path, missing: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise LoadError(missing) from error
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} can't be read as JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise LoadError(f"{path} should hold a JSON object and holds a {type(content).__name__}; download it again")
    return content
