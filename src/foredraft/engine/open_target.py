"""From a model's name to a `Target`: loads the checkpoint, chooses the decoder, sizes the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foredraft.errors import CapacityError, ConfigError
from foredraft.target.kv_cache import KVCache
from foredraft.target.machine import free_memory
from foredraft.target.stock_decoder import exact_length
from foredraft.target.target import Target

if TYPE_CHECKING:
    from transformers import GenerationConfig

__all__ = ["EngineArgs", "OpenedTarget", "open_target"]

SHARE_OF_FREE_MEMORY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """What a model runs with; names and meaning are vLLM's.

    kv_cache_memory_bytes  room for keys and values (None: half of the memory that is free, at most what all slots can
                           use)
    quantization           "int8", or None: as the checkpoint suggests
    enforce_eager          run the stock transformers model even where the lean decoder could
    device                 "cpu", "cuda", ..., or "auto": the first GPU if there is one
    """

    model: str
    dtype: str = "auto"
    quantization: str | None = None
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    kv_cache_memory_bytes: int | None = None
    enforce_eager: bool = False
    revision: str | None = None
    trust_remote_code: bool = False
    offline: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (("max_num_seqs", 1, 1024), ("max_num_batched_tokens", 1, 1 << 20)):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number from {low} to {high}.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, less than one token for each of the "
                f"{self.max_num_seqs} sequences; raise it or lower max_num_seqs."
            )


@dataclass(frozen=True, slots=True)
class OpenedTarget:
    """A target, how many tokens memory allows over all sequences (None: nobody knows), and the checkpoint's own
    sampling defaults."""

    target: Target
    kv_room: int | None
    generation_defaults: GenerationConfig | None


def open_target(args: EngineArgs) -> OpenedTarget:
    """Load a model for decoding. Raises LoadError, ConfigError or CapacityError."""
    from foredraft.target.loading import prepare_target
    from foredraft.target.open_decoder import open_decoder

    prepared = prepare_target(
        args.model,
        dtype=args.dtype,
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
        max_model_len=args.max_model_len,
        offline=args.offline,
    )
    decoder = open_decoder(
        prepared, quantization=args.quantization, enforce_eager=args.enforce_eager, device=args.device
    )
    longest = prepared.max_model_len
    if (exact := exact_length(prepared.config.get_text_config())) is not None:
        longest = min(longest, exact)
    per_token = decoder.cache_shape.bytes_per_token(decoder.cache_dtype.itemsize)
    memory = args.kv_cache_memory_bytes
    if memory is None:
        free = free_memory(decoder.device)
        memory = int(free * SHARE_OF_FREE_MEMORY) if free is not None else None
    room = None if memory is None else memory // per_token
    if room is not None and room < 2:
        raise CapacityError(
            f"{memory} bytes of KV cache hold {room} tokens at {per_token} bytes each; "
            f"raise --kv-cache-memory-bytes to at least {per_token * 256}."
        )
    cache = KVCache(decoder.cache_shape, args.max_num_seqs, decoder.cache_dtype, decoder.device)
    target = Target(
        decoder, cache, prepared.name, longest, prepared.eos_token_ids, prepared.tokenizer, prepared.fingerprint
    )
    return OpenedTarget(target, room, prepared.generation_defaults)
