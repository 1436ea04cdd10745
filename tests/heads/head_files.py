"""Tiny random heads as files in every dialect: tensors and configuration as each project writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

H, HEADS, KV_HEADS, D, INNER, V, VD = 16, 4, 2, 4, 24, 40, 12
LAYERS = 8  # of the target
KEPT = [0, 3, 4, 9, 10, 17, 21, 22, 30, 35, 38, 39]  # the draft vocabulary, as target ids
Written = tuple[dict[str, Any], dict[str, Tensor]]
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "vocab_size": V,
}


def save(folder: Path, written: Written, name: str = "model.safetensors") -> Path:
    config, tensors = written
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    ready = {key: tensor.contiguous() for key, tensor in tensors.items()}
    if name.endswith(".safetensors"):
        save_file(ready, folder / name)
    else:
        torch.save(ready, folder / name)
    return folder


def random_(*shape: int, scale: float = 0.4) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64) * scale


def norm_(size: int) -> Tensor:
    return 1 + 0.3 * torch.randn(size, dtype=torch.float64)


def layer(prefix: str, width: int, *, biased: bool = False, head_norms: bool = False) -> dict[str, Tensor]:
    tensors = {
        f"{prefix}self_attn.q_proj.weight": random_(HEADS * D, width),
        f"{prefix}self_attn.k_proj.weight": random_(KV_HEADS * D, width),
        f"{prefix}self_attn.v_proj.weight": random_(KV_HEADS * D, width),
        f"{prefix}self_attn.o_proj.weight": random_(H, HEADS * D),
        f"{prefix}mlp.gate_proj.weight": random_(INNER, H),
        f"{prefix}mlp.up_proj.weight": random_(INNER, H),
        f"{prefix}mlp.down_proj.weight": random_(H, INNER),
        f"{prefix}post_attention_layernorm.weight": norm_(H),
    }
    if biased:
        tensors |= {f"{prefix}self_attn.{part}_proj.bias": random_(rows) for part, rows in
                    (("q", HEADS * D), ("k", KV_HEADS * D), ("v", KV_HEADS * D))}  # fmt: skip
    if head_norms:
        tensors |= {f"{prefix}self_attn.{part}_norm.weight": norm_(D) for part in "qk"}
    return tensors


def eagle1(*, biased: bool = True, hass: bool = False) -> Written:
    """SafeAILab's EAGLE-1 of a Qwen2 kind, or HASS."""
    tensors = {"embed_tokens.weight": random_(V, H), "fc.weight": random_(H, 2 * H)}
    tensors |= layer("layers.0.", H, biased=biased)
    config = {**LLAMA, "architectures": ["LlamaForCausalLM"], "bias": biased, "qkv_bias": biased}
    if biased:
        tensors["fc.bias"] = random_(H)
    if hass:
        tensors |= {f"{name}_layernorm.weight": norm_(H) for name in ("embedding", "hidden_states")}
        config["add_para_norm"] = True
    return config, tensors


def eagle3(
    prefix: str = "midlayer.", *, target_hidden: int = H, taps: int = 3, reduced: bool = True, head_norms: bool = False
) -> Written:
    """SafeAILab's EAGLE-3, whose configuration doesn't say which layers it taps."""
    rows = VD if reduced else V
    tensors = {
        "fc.weight": random_(H, taps * target_hidden),
        **layer(prefix, 2 * H, head_norms=head_norms),
        f"{prefix}input_layernorm.weight": norm_(H),
        f"{prefix}hidden_norm.weight": norm_(H),
        "norm.weight": norm_(H),
        "lm_head.weight": random_(rows, H),
    }
    if reduced:
        kept = torch.tensor(KEPT)
        tensors["d2t"] = kept - torch.arange(VD)
        tensors["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, kept, True)
    return {**LLAMA, "architectures": ["LlamaForCausalLM"], "draft_vocab_size": rows}, tensors


def specforge() -> Written:
    """With EAGLE-3.1's norms, scaled positions and its own embeddings for a wider target."""
    config, tensors = eagle3(target_hidden=2 * H)
    tensors |= {f"fc_norm.{tap}.weight": norm_(2 * H) for tap in range(3)}
    tensors["embed_tokens.weight"] = random_(V, H)
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "target_hidden_size": 2 * H,
        "rope_theta": 500.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "norm_output": True,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 5], "use_aux_hidden_state": True},
    }
    return config, tensors


def modelopt() -> Written:
    config, tensors = eagle3("layers.0.")
    del tensors["t2d"]
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_last_layernorm": True},
    }
    return config, tensors


def speculators() -> Written:
    """Of the qwen3 layer type, with the first norm before the residual and one norm before fc."""
    _, tensors = eagle3("layers.0.", head_norms=True)
    tensors |= {"embed_tokens.weight": random_(V, H), "input_norm.weight": norm_(3 * H)}
    tensors["verifier_norm.weight"] = norm_(H)
    nested = {**LLAMA, "model_type": "qwen3", "head_dim": D}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": nested,
        "draft_vocab_size": VD,
        "norm_before_residual": True,
        "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "speculators_config": {"verifier": {"name_or_path": "some/target", "architectures": []}},
    }, tensors


def medusa_heads(prefix: str = "", heads: int = 3, layers: int = 2) -> Written:
    """FasterDecoding's, whose configuration counts the heads wrongly."""
    tensors = {}
    for head in range(heads):
        for block in range(layers):
            tensors[f"{prefix}{head}.{block}.linear.weight"] = random_(H, H)
            tensors[f"{prefix}{head}.{block}.linear.bias"] = random_(H)
        tensors[f"{prefix}{head}.{layers}.weight"] = random_(V, H)
    return {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "some/target"}, tensors


def vllm_medusa(*, truncated: bool = True, shared: bool = False) -> Written:
    tensors = {f"medusa_heads.blocks.{head}.layers.0.weight": random_(H, H) for head in range(3)}
    rows = VD if truncated else V
    tensors |= {f"lm_heads.{head}.weight": random_(rows, H) for head in range(1 if shared else 3)}
    if truncated:
        tensors["token_map"] = torch.tensor(KEPT)
    return {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "num_heads": 3,
        "num_hidden_layers": 1,
        "hidden_size": H,
        "vocab_size": V,
        "truncated_vocab_size": rows,
        "medusa_fc_bias": False,
        "original_lm_head": shared,
    }, tensors
