"""What a decoder is worth, found out by running it: whether its logits are the stock model's, and whether rows are
independent.

`take_probe` runs the stock model before its weights are taken over, `prove` compares; the verdict is kept on disk by
checkpoint, weight format, device and versions, so that later starts need no stock model. `check_rows` compares the
bits of a row's logits among passes of different sizes, in chains and in trees: its result decides which guarantee the
user has.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from foredraft.target.decoder import Decoder
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache
from foredraft.target.load_cache import note_path, read_object, write_note
from foredraft.target.machine import device_name
from foredraft.target.provenance import provenance
from foredraft.target.quantization import WeightFormat

__all__ = ["Probe", "RowCheck", "Verdict", "check_rows", "prove", "recall", "remember", "take_probe"]

TOLERANCE: dict[WeightFormat, float] = {"float32": 2e-3, "bfloat16": 0.06, "int8": 0.2}
"""Root mean square of the logits' error by their standard deviation. Stock bfloat16 has 0.02 to float32 for the default
model; a wrong rotation, mask or norm gives 0.5 and more."""

PROBE_LENGTHS = (5, 27, 70)
ROW_COUNTS = (1, 2, 4, 8, 16, 32)


class Probe(NamedTuple):
    """Logits [T, V] of a few sequences."""

    sequences: tuple[tuple[int, ...], ...]
    logits: Tensor


@dataclass(frozen=True, slots=True)
class Verdict:
    """error: of the logits, by their standard deviation; reason: why the decoder must not be used, in one clause."""

    holds: bool
    error: float
    tolerance: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RowCheck:
    """From how many rows a pass gives a row the same bits whatever its size (1: always; None: no such count was found).

    gap: largest difference of a logit between passes of different sizes or shapes.
    """

    invariant_from: int | None
    trees_exact: bool
    gap: float

    @property
    def exact(self) -> bool:
        """Whether speculation reproduces plain decoding bit for bit."""
        return self.invariant_from == 1 and self.trees_exact


def take_probe(stock: Decoder) -> Probe:
    """The stock model's logits for a few fixed sequences of scattered tokens."""
    sequences = tuple(tuple(_scattered(count, stock.vocab_size)) for count in PROBE_LENGTHS)
    return Probe(sequences, _probe_logits(stock, sequences))


def prove(decoder: Decoder, weight_format: WeightFormat, probe: Probe) -> Verdict:
    """Compare a decoder with the probe's logits."""
    tolerance = TOLERANCE[weight_format]
    logits = _probe_logits(decoder, probe.sequences)
    if logits.shape != probe.logits.shape:
        shapes = f"{tuple(logits.shape)}, not {tuple(probe.logits.shape)}"
        return Verdict(False, float("inf"), tolerance, f"its logits have shape {shapes}")
    difference = logits.double() - probe.logits.double()
    error = (difference.square().mean().sqrt() / probe.logits.double().std().clamp(min=1e-12)).item()
    if error <= tolerance:
        return Verdict(True, error, tolerance)
    reason = f"its logits are off by {error:.2g} of their spread; {weight_format} may have {tolerance:g}"
    return Verdict(False, error, tolerance, reason)


def check_rows(decoder: Decoder) -> RowCheck:
    """Run the same tokens in passes of different sizes, and as the branch of a tree, and compare bits."""
    longest = max(ROW_COUNTS)
    tokens = _scattered(3 + longest, decoder.vocab_size)
    cache = KVCache(decoder.cache_shape, 2, decoder.cache_dtype, decoder.device)
    cache.reserve(2 * longest + 8)
    _chain(decoder, cache, 0, 0, tokens[:3])
    whole = _chain(decoder, cache, 0, 3, tokens[3:])
    gap = 0.0
    differing = [0]
    for rows in ROW_COUNTS[:-1]:
        split = []
        for start in range(3, len(tokens), rows):
            if start + rows <= len(tokens):
                split.append(_chain(decoder, cache, 0, start, tokens[start : start + rows]))
        logits = torch.cat(split)
        if not torch.equal(logits, whole[: len(logits)]):
            differing.append(rows)
            gap = max(gap, (logits - whole[: len(logits)]).abs().max().item())
    later = [rows for rows in ROW_COUNTS if rows > max(differing)]
    branch = _branch(decoder, cache, tokens[:12])
    plain = _chain(decoder, cache, 0, 0, tokens[:12])[4:]
    if not torch.equal(branch, plain):
        gap = max(gap, (branch - plain).abs().max().item())
    return RowCheck(later[0] if len(later) > 1 else None, torch.equal(branch, plain), gap)


def recall(fingerprint: str, weight_format: WeightFormat, device: torch.device) -> Verdict | None:
    """The verdict of an earlier start on this checkpoint, format, device and versions."""
    try:
        return Verdict(**read_object(_note(fingerprint, weight_format, device)))
    except TypeError:
        return None


def remember(fingerprint: str, weight_format: WeightFormat, device: torch.device, verdict: Verdict) -> None:
    """Keep a verdict for later starts."""
    write_note(_note(fingerprint, weight_format, device), asdict(verdict))


def _note(fingerprint: str, weight_format: WeightFormat, device: torch.device) -> Path:
    """The file of a verdict; its name changes with anything that could change the verdict."""
    return note_path("proofs", repr((fingerprint, weight_format, provenance(), device_name(device))))


def _scattered(count: int, vocab_size: int) -> list[int]:
    return [(index * 7919 + 13 * count) % vocab_size for index in range(count)]


def _probe_logits(decoder: Decoder, sequences: tuple[tuple[int, ...], ...]) -> Tensor:
    """All sequences in one pass."""
    cache = KVCache(decoder.cache_shape, len(sequences), decoder.cache_dtype, decoder.device)
    segments: list[Segment] = []
    for slot, sequence in enumerate(sequences):
        first = segments[-1].first + segments[-1].rows if segments else 0
        segments.append(Segment(slot, 0, first, len(sequence)))
    tokens = torch.tensor([token for sequence in sequences for token in sequence], device=decoder.device)
    positions = torch.cat([torch.arange(len(sequence)) for sequence in sequences]).to(decoder.device)
    return decoder.head(decoder.forward(FlatPass(tokens, positions, tuple(segments)), cache).last).cpu()


def _chain(decoder: Decoder, cache: KVCache, slot: int, start: int, tokens: list[int]) -> Tensor:
    positions = torch.arange(start, start + len(tokens), device=decoder.device)
    flat = FlatPass(torch.tensor(tokens, device=decoder.device), positions, (Segment(slot, start, 0, len(tokens)),))
    return decoder.head(decoder.forward(flat, cache).last)


def _branch(decoder: Decoder, cache: KVCache, tokens: list[int]) -> Tensor:
    """Logits from the fifth token on, the later ones as every other node of a tree."""
    _chain(decoder, cache, 1, 0, tokens[:4])
    wanted, decoys = tokens[5:], [token + 1 for token in tokens[5:]]
    nodes = [
        token for pair in zip([token % decoder.vocab_size for token in decoys], wanted, strict=True) for token in pair
    ]
    parents = tuple(2 * (node // 2) for node in range(len(nodes)))
    segment = Segment(1, 4, 0, 1, parents)
    flat = FlatPass(
        torch.tensor([tokens[4], *nodes], device=decoder.device),
        torch.tensor([4 + depth for depth in segment.depths()], device=decoder.device),
        (segment,),
    )
    rows = torch.arange(0, 1 + len(nodes), 2)
    return decoder.head(decoder.forward(flat, cache).last)[rows]
