"""Finds the files of a head, on disk or on the hub, and reads its configuration and the list of its tensors.

safetensors files are looked at through their header, so a large one costs nothing until tensors are taken. A pickle can
run code when it is read: it is refused unless allowed, and then read by torch's weights-only loader.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foredraft.errors import LoadError

__all__ = ["HeadFiles", "find_head_files"]

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
HUB_ID = re.compile(r"(?!.*(\.\.|--))[\w][\w.-]*/[\w][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """What is in a checkpoint. `shapes` has every tensor's name; `take(names)` reads some of them."""

    path: str
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    take: Callable[[Iterable[str]], dict[str, Tensor]]


def find_head_files(
    path: str | Path, *, revision: str | None = None, allow_pickle: bool = False, offline: bool = False
) -> HeadFiles:
    """`path` is a folder, a file of weights with its config.json beside it, or a hub id (`offline`: in its cache).
    Raises LoadError."""
    place = Path(path)
    if not place.exists():
        if not HUB_ID.fullmatch(str(path)):
            raise LoadError(f"{path} doesn't exist; pass a head's folder, its file of weights, or a hub id")
        place = _fetch(str(path), revision, allow_pickle, offline)
    elif revision is not None:
        raise LoadError(f"the revision {revision!r} is given for {path}, which is on this machine; leave it out")
    if place.is_file() and place.suffix not in (".safetensors", *PICKLES):
        raise LoadError(
            f"{path} is no file of weights (.safetensors, or a pickle: {', '.join(PICKLES)}); pass a head's folder, "
            "its file of weights, or a hub id"
        )
    folder, files = (place, _weights(place)) if place.is_dir() else (place.parent, [place])
    config = _read_config(folder / "config.json")
    if all(file.suffix == ".safetensors" for file in files):
        return _from_safetensors(str(path), config, files)
    if not allow_pickle:
        raise LoadError(
            f"{files[0]} is a pickle, which can run code when it is read; convert it to safetensors, or add "
            "allow_pickle (--allow-pickle) to have torch's weights-only loader read it"
        )
    tensors = {name: tensor for file in files for name, tensor in _unpickle(file).items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return HeadFiles(str(path), config, shapes, lambda names: {name: tensors[name] for name in names})


def _weights(folder: Path) -> list[Path]:
    """The files of weights: those of an index, all safetensors, or else all pickles."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        parts = sorted(set(_read_config(index).get("weight_map", {}).values()))
        lost = [part for part in parts if not (folder / part).is_file()]
        if lost:
            raise LoadError(f"{folder} lacks {lost[0]}, which {index.name} lists; download it again")
        return [folder / part for part in parts]
    files = sorted(folder.glob("*.safetensors"))
    files = files or sorted(file for file in folder.iterdir() if file.suffix in PICKLES)
    if not files:
        raise LoadError(f"{folder} has no weights (.safetensors); pass the folder that a head was saved in")
    return files


def _from_safetensors(path: str, config: dict[str, Any], files: list[Path]) -> HeadFiles:
    shapes: dict[str, tuple[int, ...]] = {}
    home: dict[str, Path] = {}
    for file in files:
        for name, shape in _read_header(file).items():
            shapes[name], home[name] = shape, file

    def take(names: Iterable[str]) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        wanted = list(names)
        for file in files:
            try:
                with safe_open(file, framework="pt", device="cpu") as opened:
                    tensors |= {name: opened.get_tensor(name) for name in wanted if home[name] == file}
            except (SafetensorError, OSError) as error:
                raise LoadError(f"{file} can't be read ({error}); download it again") from error
        return tensors

    return HeadFiles(path, config, shapes, take)


def _read_header(file: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors, once the header is found to describe exactly the file that is there."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        text = opened.read(length) if 8 + length <= size else b""
    shapes: dict[str, tuple[int, ...]] = {}
    end = 0
    try:
        for name, tensor in json.loads(text).items():
            if name != "__metadata__":
                shapes[name] = tuple(int(side) for side in tensor["shape"])
                end = max(end, int(tensor["data_offsets"][1]))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise LoadError(f"{file} is cut off or damaged: its header can't be read; download it again") from error
    if 8 + length + end != size:
        raise LoadError(f"{file} is cut off or damaged: {size:,} of {8 + length + end:,} bytes; download it again")
    return shapes


def _unpickle(file: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise LoadError(
            f"{file} holds more than tensors, or is damaged, and torch's weights-only loader refuses it; "
            "convert it to safetensors where it comes from"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise LoadError(f"{file} is cut off or damaged and can't be read; download it again") from error
    if not isinstance(content, dict):
        raise LoadError(f"{file} holds a {type(content).__name__}, not named tensors; pass a head's file of weights")
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def _read_config(file: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if there is no file, since old Medusa heads come without."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LoadError(f"{file} can't be read as JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise LoadError(f"{file} should hold a JSON object and holds a {type(content).__name__}; download it again")
    return content


def _fetch(hub_id: str, revision: str | None, allow_pickle: bool, offline: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    patterns = ["*.json", "*.safetensors"] + (["*" + suffix for suffix in PICKLES] if allow_pickle else [])
    try:
        return Path(
            snapshot_download(
                hub_id,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=["*/*"],
                local_files_only=offline,
            )
        )
    except RevisionNotFoundError as error:
        raise LoadError(f"{hub_id} has no revision {revision!r}; pass an existing branch, tag or commit") from error
    except RepositoryNotFoundError as error:
        raise LoadError(
            f"{hub_id!r} is no file or folder here and no head on the hub; check its name, or set HF_TOKEN if private"
        ) from error
    except LocalEntryNotFoundError as error:
        raise LoadError(
            f"{hub_id!r} is no file or folder here, nor in the hub's cache, and the hub can't be reached; connect or "
            "pass a local path"
        ) from error
    except Exception as error:  # the client's HTTP library raises its own kinds
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise LoadError(
            f"{hub_id} can't be downloaded ({reason}); start again, what is already here is kept"
        ) from error
