"""Reads a GGUF file's header (metadata and tensor table) and its tensors, as float32 row by row.

The header is parsed here in about 0.1 s, where the `gguf` package's reader needs seconds for a vocabulary, and every
length in it is checked against the file, so a damaged or truncated file is refused before anything is allocated. Blocks
are decoded by the package's own dequantiser, a slice of rows at a time: memory stays at one slice whatever the size of
the model. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import LoadError

__all__ = ["GgufFile", "GgufTensor", "read_gguf", "tensor_slices", "weight_kind"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# ggml's number of a storage kind -> its name, elements per block, bytes per block
KINDS = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}
SLICE_ELEMENTS = 1 << 22  # 16 MB of float32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One stored tensor: `shape` outermost first, `offset` and `size` in bytes within the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    size: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed header."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unnamed"))


def read_gguf(path: Path) -> GgufFile:
    """Parse and check the header; LoadError for anything but a whole, little-endian GGUF file of version 2 or 3."""
    size = path.stat().st_size
    if size < 24:
        raise LoadError(f"{path} is not a GGUF file (only {size} bytes); download it again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != MAGIC:
            raise LoadError(
                f"{path} is not a GGUF file (it starts with {data[:4]!r}); pass a .gguf file or a model folder"
            )
        cursor = _Cursor(data, 4)
        try:
            return _parse(path, cursor, size)
        except (struct.error, OverflowError, MemoryError, UnicodeDecodeError, _DamagedError) as error:
            raise LoadError(
                f"{path} is damaged or cut off near byte {cursor.position:,} of {size:,}; download it again"
            ) from error


def tensor_slices(file: GgufFile, tensor: GgufTensor, *, whole: bool = False) -> Iterator[NDArray[np.float32]]:
    """The tensor's values as float32 [rows, columns] slices in order (one slice when `whole`); a vector is one row."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    _, block, block_size = KINDS[tensor.kind]
    columns = tensor.shape[-1]
    rows = tensor.elements // columns
    row_size = columns // block * block_size
    step = rows if whole else max(1, SLICE_ELEMENTS // columns)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        offset = tensor.offset + first * row_size
        stored = np.fromfile(file.path, np.uint8, count * row_size, offset=offset).reshape(count, row_size)
        yield (
            dequantize(stored, GGMLQuantizationType(tensor.kind)).reshape(count, columns).astype(np.float32, copy=False)
        )


def weight_kind(file: GgufFile) -> str:
    """Name of the storage kind that holds most of the model's weights, as "q4_1"."""
    elements: dict[int, int] = {}
    for tensor in file.tensors.values():
        elements[tensor.kind] = elements.get(tensor.kind, 0) + tensor.elements
    return KINDS[max(elements, key=lambda kind: elements[kind])][0].lower()


class _DamagedError(Exception):
    """A length or a number in the header that can't be right."""


class _Cursor:
    """Reads forward through the mapped header."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self.data, self.position = data, position

    def number(self, code: str) -> Any:
        values = struct.unpack_from(f"<{code}", self.data, self.position)
        self.position += struct.calcsize(f"<{code}")
        return values[0] if len(values) == 1 else values

    def string(self) -> str:
        length = struct.unpack_from("<Q", self.data, self.position)[0]
        end = self.position + 8 + length
        if end > len(self.data):
            raise _DamagedError
        text = self.data[self.position + 8 : end].decode("utf-8")
        self.position = end
        return text

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        if kind not in SCALARS:
            raise _DamagedError
        return self.number(SCALARS[kind])

    def array(self) -> list[Any]:
        kind, count = self.number("IQ")
        if kind in SCALARS:
            values = struct.unpack_from(f"<{count}{SCALARS[kind]}", self.data, self.position)
            self.position += struct.calcsize(f"<{count}{SCALARS[kind]}")
            return list(values)
        if count > len(self.data) - self.position:
            raise _DamagedError
        return [self.value(kind) for _ in range(count)]


def _parse(path: Path, cursor: _Cursor, size: int) -> GgufFile:
    version, tensor_count, key_count = cursor.number("IQQ")
    if version not in VERSIONS:
        other = "big-endian" if version & 0xFFFF == 0 else f"GGUF version {version}"
        raise LoadError(
            f"{path} is {other}, and only little-endian versions 2 and 3 are read; convert it with a current llama.cpp"
        )
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("I"))
    parts = metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise LoadError(f"{path} is one of {parts} parts of a model; join them with llama.cpp's `gguf-split --merge`")
    entries = [(cursor.string(), *_tensor_entry(cursor)) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise _DamagedError
    start = -(-cursor.position // alignment) * alignment
    tensors = {name: _tensor(path, name, shape, kind, start + offset) for name, shape, kind, offset in entries}
    end = max((tensor.offset + tensor.size for tensor in tensors.values()), default=0)
    if end > size:
        raise LoadError(f"{path} is cut off: it holds {size:,} of {end:,} bytes; download it again")
    if not tensors:
        raise LoadError(f"{path} holds no weights, only metadata; pass the model's own .gguf file")
    return GgufFile(path, metadata, tensors)


def _tensor_entry(cursor: _Cursor) -> tuple[tuple[int, ...], int, int]:
    dimensions = cursor.number("I")
    if not 1 <= dimensions <= 4:
        raise _DamagedError
    shape = tuple(reversed([cursor.number("Q") for _ in range(dimensions)]))
    kind, offset = cursor.number("IQ")
    return shape, kind, offset


def _tensor(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
    if kind not in KINDS:
        known = ", ".join(label for label, _, _ in KINDS.values())
        raise LoadError(
            f"{path} stores {name!r} as ggml type {kind}, which foredraft can't decode; use a file of {known}"
        )
    _, block, block_size = KINDS[kind]
    if min(shape) < 1 or shape[-1] % block:
        raise _DamagedError
    return GgufTensor(name, shape, kind, offset, math.prod(shape) // block * block_size)
