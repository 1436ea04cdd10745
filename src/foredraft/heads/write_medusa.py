"""Medusa heads as other programs read them. Both formats give every head an output layer: heads that share the target's
get a copy of it, so such files are large."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.heads.info import TargetFacts
from foredraft.heads.medusa import MedusaHeads

__all__ = ["fasterdecoding_medusa", "vllm_medusa"]

Written = tuple[dict[str, Any], dict[str, Tensor]]


def vllm_medusa(heads: MedusaHeads, target: TargetFacts, output: Tensor | None) -> Written:
    """What vLLM reads. Heads that share the target's output layer say so and hold it once."""
    shape = heads.shape
    tensors = _blocks(heads)
    outputs = _outputs(heads, output)
    shared = shape.output == "target"
    tensors |= {f"lm_heads.{head}.weight": rows for head, rows in enumerate(outputs[:1] if shared else outputs)}
    config: dict[str, Any] = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "num_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "vocab_size": shape.vocab_size,
        "truncated_vocab_size": shape.draft_vocab_size,
        "medusa_fc_bias": shape.bias,
        "original_lm_head": shared,
        "max_paths": 64,
        "topk": 10,
    }
    if heads.draft_ids is not None:
        tensors["token_map"] = heads.draft_ids
    return config, tensors


def fasterdecoding_medusa(heads: MedusaHeads, target: TargetFacts, output: Tensor | None) -> Written:
    """The format of the paper's code (v0.1), in safetensors."""
    shape = heads.shape
    if heads.draft_ids is not None:
        raise ConfigError("The medusa format has no reduced vocabulary; write these heads as vllm-medusa or foredraft")
    if not shape.bias:
        raise ConfigError(
            "The medusa format has biases and these heads have none; write them as vllm-medusa or foredraft"
        )
    tensors = {
        name.removeprefix("blocks.")
        .replace(".layers.", ".")
        .replace(".weight", ".linear.weight")
        .replace(".bias", ".linear.bias"): tensor
        for name, tensor in _blocks(heads).items()
    }
    for head, rows in enumerate(_outputs(heads, output)):
        tensors[f"{head}.{shape.layers}.weight"] = rows
    config = {
        "medusa_num_heads": shape.heads,
        "medusa_num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "vocab_size": shape.vocab_size,
        "base_model_name_or_path": target.name,
    }
    return config, tensors


def _blocks(heads: MedusaHeads) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in heads.state_dict().items() if name.startswith("blocks.")}


def _outputs(heads: MedusaHeads, output: Tensor | None) -> list[Tensor]:
    """The output layer of each head, [Vd, H], a low-rank one multiplied out."""
    if heads.lm_heads is not None:
        return list(heads.lm_heads.state_dict().values())
    if heads.narrow is not None and heads.widen is not None:
        wide = heads.widen.weight.detach()
        return [wide @ narrow for narrow in heads.narrow.state_dict().values()]
    if output is None:
        raise ConfigError("These heads use the target's output layer, which the format wants a copy of; pass --target")
    return [output if heads.draft_ids is None else output[heads.draft_ids]] * heads.shape.heads
