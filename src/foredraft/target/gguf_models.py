"""What a GGUF architecture is in transformers: configuration, names of tensors, and how their rows were rearranged.

llama.cpp's converter changes three things that are undone here: rows of Llama's query and key projections are
interleaved per head for its rotary embedding, Gemma's norms are stored as weight + 1, and Llama 3's rotary scaling is
stored as the resulting factors. A file whose numbers can't be told apart from a different model is refused, never
guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import LoadError
from foredraft.target.gguf_file import GgufFile, tensor_slices

__all__ = ["Architecture", "find_architecture", "parameter_name", "transformers_config", "undo_rearrangement"]

BLOCK = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LLAMA_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
QUERY_KEY_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PHI3_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
ROTARY_FACTORS = "rope_freqs.weight"
# Of Llama 3's rotary scaling only the factor differs between releases; these three are common to all of them.
LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, slots=True)
class Keys:
    """An architecture's metadata, without the architecture's prefix."""

    file: GgufFile

    def get(self, name: str, default: Any = None) -> Any:
        value = self.file.metadata.get(f"{self.file.architecture}.{name}", default)
        return (
            float(f"{value:.7g}") if isinstance(value, float) else value
        )  # float32's shortest decimal, as in config.json

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            reason = "differs between layers" if isinstance(value, list) else f"is {value!r}"
            raise LoadError(
                f"{self.file.path} can't be loaded: {self.file.architecture}.{name} {reason} where one positive number "
                "is needed; use the safetensors checkpoint"
            )
        return value


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one GGUF architecture maps to transformers."""

    model_type: str
    class_name: str
    layer: Mapping[str, str]
    extra: Callable[[Keys], dict[str, Any]] = field(default=lambda keys: {})
    interleaved: bool = False  # query and key rows are in llama.cpp's rotary order
    norm_offset: float = 0.0


def _llama(keys: Keys) -> dict[str, Any]:
    if keys.get("expert_count", 0):
        raise LoadError(f"{keys.file.path} is a mixture of experts, which foredraft loads from safetensors only")
    if keys.get("rope.dimension_count", _head_dim(keys)) != _head_dim(keys):
        raise LoadError(
            f"{keys.file.path} rotates only a part of each head, which Llama doesn't; use the safetensors checkpoint"
        )
    tensors = keys.file.tensors
    return {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_gate.bias" in tensors}


def _gemma(keys: Keys, layers_of_largest: int) -> dict[str, Any]:
    # The attention scale isn't stored: the largest model of a generation takes it from the width, others from the head.
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    largest = keys.integer("block_count") == layers_of_largest
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width // heads if largest else _head_dim(keys),
        "sliding_window": keys.integer("attention.sliding_window"),
        "attn_logit_softcapping": keys.get("attn_logit_softcapping"),
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
    }


def _gemma3(keys: Keys) -> dict[str, Any]:
    return _gemma(keys, 62) | {
        "rope_local_base_freq": keys.get("rope.freq_base_swa", 10000.0),
        "sliding_window_pattern": 6,
    }


def _phi3(keys: Keys) -> dict[str, Any]:
    if any("rope_factors" in name for name in keys.file.tensors):
        raise LoadError(
            f"{keys.file.path} uses LongRoPE, whose GGUF form foredraft doesn't read; use the safetensors checkpoint"
        )
    return {
        "partial_rotary_factor": keys.integer("rope.dimension_count", _head_dim(keys)) / _head_dim(keys),
        "sliding_window": keys.get("attention.sliding_window"),
        "original_max_position_embeddings": keys.integer("context_length"),
    }


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", LLAMA_LAYER, _llama, interleaved=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", LLAMA_LAYER),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", LLAMA_LAYER | QUERY_KEY_NORMS),
    "gemma2": Architecture(
        "gemma2", "Gemma2ForCausalLM", LLAMA_LAYER | GEMMA_NORMS, lambda keys: _gemma(keys, 46), norm_offset=1.0
    ),
    "gemma3": Architecture(
        "gemma3_text", "Gemma3ForCausalLM", LLAMA_LAYER | GEMMA_NORMS | QUERY_KEY_NORMS, _gemma3, norm_offset=1.0
    ),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", LLAMA_LAYER | PHI3_FUSED, _phi3),
}


def find_architecture(file: GgufFile) -> Architecture:
    """The mapping for the file's architecture; LoadError names the known ones."""
    found = ARCHITECTURES.get(file.architecture)
    if found is None:
        raise LoadError(
            f"{file.path} has the architecture {file.architecture!r}, which foredraft reads from safetensors only "
            f"(from GGUF it reads {', '.join(ARCHITECTURES)})"
        )
    return found


def parameter_name(file: GgufFile, name: str) -> str | None:
    """transformers' name of a stored tensor; None for one that the configuration already tells."""
    if name == ROTARY_FACTORS:
        return None
    architecture = find_architecture(file)
    stem, _, suffix = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{suffix}"
    match = BLOCK.fullmatch(name)
    if match is None or match[2] not in architecture.layer:
        raise LoadError(
            f"{file.path} holds {name!r}, unknown to {architecture.class_name}; use the safetensors checkpoint"
        )
    return f"model.layers.{match[1]}.{architecture.layer[match[2]]}.{match[3]}"


def undo_rearrangement(file: GgufFile, name: str) -> Callable[[NDArray[np.float32]], NDArray[np.float32]] | None:
    """What turns the whole stored tensor into the checkpoint's own values; None where they are stored as they were."""
    architecture = find_architecture(file)
    match = BLOCK.fullmatch(name)
    keys = Keys(file)
    if architecture.interleaved and match is not None and match[2] in ("attn_q", "attn_k"):
        heads = keys.integer("attention.head_count")
        if match[2] == "attn_k":
            heads = keys.integer("attention.head_count_kv", heads)
        return lambda values: _deinterleave(values, heads)
    if architecture.norm_offset and name.endswith("norm.weight"):
        return lambda values: values - np.float32(architecture.norm_offset)
    return None


def transformers_config(file: GgufFile) -> dict[str, Any]:
    """The content of the model's config.json, without the dtype; raises LoadError where the file leaves it open."""
    architecture, keys = find_architecture(file), Keys(file)
    if "token_embd.weight" not in file.tensors:
        raise LoadError(f"{file.path} lacks 'token_embd.weight'; pass the model's own .gguf file")
    return {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": keys.integer("embedding_length"),
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": keys.integer("attention.head_count"),
        "num_key_value_heads": keys.integer("attention.head_count_kv", keys.integer("attention.head_count")),
        "head_dim": _head_dim(keys),
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.get("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": keys.get("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(keys),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **architecture.extra(keys),
    }


def _head_dim(keys: Keys) -> int:
    return keys.integer(
        "attention.key_length", keys.integer("embedding_length") // keys.integer("attention.head_count")
    )


def _deinterleave(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows [2i, 2i+1] of each head back to [i, i + half]; a bias is one row whose columns move."""
    rows = values.T if values.shape[0] == 1 else values
    half = rows.shape[0] // heads // 2
    ordered = rows.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)
    return ordered.T if values.shape[0] == 1 else ordered


def _rope_scaling(keys: Keys) -> dict[str, Any] | None:
    kind = keys.get("rope.scaling.type", "none")
    if kind == "linear":
        return {"rope_type": "linear", "factor": keys.get("rope.scaling.factor", 1.0)}
    if kind == "yarn":
        original = keys.integer("rope.scaling.original_context_length")
        return {
            "rope_type": "yarn",
            "factor": keys.get("rope.scaling.factor", 1.0),
            "original_max_position_embeddings": original,
        }
    if kind != "none":
        raise LoadError(
            f"{keys.file.path} scales positions by {kind!r}, not read from GGUF; use the safetensors checkpoint"
        )
    if ROTARY_FACTORS not in keys.file.tensors:
        return None
    return _llama3_scaling(keys)


def _llama3_scaling(keys: Keys) -> dict[str, Any]:
    """The scaling whose factors are the stored ones; they are recomputed, and anything that differs is refused."""
    file = keys.file
    stored = next(tensor_slices(file, file.tensors[ROTARY_FACTORS], whole=True)).reshape(-1)
    factor = float(f"{stored.max():.7g}")
    low, high, original = LLAMA3_SCALING.values()
    base, size = keys.get("rope.freq_base", 10000.0), _head_dim(keys)
    wavelengths = 2 * math.pi * base ** (np.arange(0, size, 2) / size)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1 - smooth) / factor + smooth)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-3):
        raise LoadError(f"{file.path} holds rotary factors that aren't Llama 3's; use the safetensors checkpoint")
    return {"rope_type": "llama3", "factor": factor, **LLAMA3_SCALING}
