"""What `bench micro` reports: a dataclass for each kind of cell. Times are medians, in milliseconds or seconds as
named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["HostCell", "LoadCell", "MemoryCell", "MicroCell", "PassCell", "PrefillCell", "SamplingCell"]


@dataclass(frozen=True, slots=True)
class PassCell:
    """A whole target pass over `rows` rows of `batch` sequences with `cached` tokens together; `products_ms` are its
    matrix products alone, `over_products` and `over_fewest_rows` its ratio to those and to the narrowest pass.
    """

    rows: int
    cached: int
    batch: int
    pass_ms: float
    products_ms: float | None
    over_products: float | None
    over_fewest_rows: float
    fastest_ms: float
    kind: str = field(default="pass", init=False)


@dataclass(frozen=True, slots=True)
class PrefillCell:
    """Reading a prompt of `rows` tokens in one pass, to the logits of its last token."""

    rows: int
    prefill_ms: float
    fastest_ms: float
    kind: str = field(default="prefill", init=False)


@dataclass(frozen=True, slots=True)
class HostCell:
    """A step's time outside the target's pass and the drafter: scheduling, picking, verifying, committing, text.

    Of steps in which all of `rows` - 1 drafts were accepted, which leaves most to do.
    """

    temperature: float
    rows: int
    steps: int
    host_ms: float
    host_ms_p90: float
    kind: str = field(default="host", init=False)


@dataclass(frozen=True, slots=True)
class SamplingCell:
    """Picking a token for every one of `rows` rows, and its share of the pass that computed their logits."""

    params: str
    rows: int
    sampling_ms: float
    share_of_pass: float | None
    kind: str = field(default="sampling", init=False)


@dataclass(frozen=True, slots=True)
class LoadCell:
    """A start in a process of its own. `cache` is "empty" on the first start ever, else "filled".

    import_s: torch and foredraft; load_s: the model, ready to decode; first_token_s: from then to a first token.
    """

    cache: str
    import_s: float
    load_s: float
    first_token_s: float
    total_s: float
    kind: str = field(default="load", init=False)


@dataclass(frozen=True, slots=True)
class MemoryCell:
    """Resident memory in MB (10^6 bytes) of a process that loads the model and decodes `tokens` tokens plainly.

    torch_mb: the interpreter with torch imported; loaded_mb: with the model; peaks: while loading, while decoding.
    beyond_torch_mb: the decoding peak without interpreter and torch; beyond_weights_mb: without the weights and the
    keys and values (kv_mb) of those tokens.
    """

    tokens: int
    torch_mb: float
    loaded_mb: float
    load_peak_mb: float
    decode_peak_mb: float
    weights_mb: float
    kv_mb: float
    beyond_torch_mb: float
    beyond_weights_mb: float
    kind: str = field(default="memory", init=False)


MicroCell: TypeAlias = PassCell | PrefillCell | HostCell | SamplingCell | LoadCell | MemoryCell
