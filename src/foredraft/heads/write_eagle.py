"""EAGLE heads as other programs read them: configuration and tensors of SafeAILab's, SGLang's and speculators' formats.

All of them get the tapped layers twice, as boundaries at the top level (vLLM) and as output layers in eagle_config
(SGLang, ModelOpt), and `aux_layer_convention` says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.heads.draft_vocabulary import draft_offsets, vocabulary_mask
from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.heads.info import TargetFacts

__all__ = ["safeailab_eagle", "sglang_eagle", "speculators_eagle"]

KEY = "eagle_aux_hidden_state_layer_ids"
CONVENTION = "top level: input of layer k; eagle_config: output of layer k"
Written = tuple[dict[str, Any], dict[str, Tensor]]


def safeailab_eagle(head: EagleHead, target: TargetFacts, embedding: Tensor | None, output: Tensor | None) -> Written:
    """What SafeAILab's own code and vLLM read: EAGLE-1 and EAGLE-3. Raises ConfigError for what they'd ignore."""
    shape = head.shape
    newer = [name for name in ("norm_output", "fc_norm", "norm_before_fc", "norm_before_residual", "qk_norm")
             if getattr(shape, name)]  # fmt: skip
    if shape.generation == 3 and newer:
        raise ConfigError(
            f"This head uses {' and '.join(newer)}, which SafeAILab's code would ignore; write it as "
            "sglang or speculators"
        )
    if shape.generation == 1:
        return _eagle1(head)
    config, tensors = _llama(shape), _weights(head, embedding, output, "midlayer.")
    return {**config, **_reading(shape), "architectures": ["LlamaForCausalLM"]}, tensors


def sglang_eagle(head: EagleHead, target: TargetFacts, embedding: Tensor | None, output: Tensor | None) -> Written:
    """What SGLang, SpecForge and vLLM read, EAGLE-3.1's flags included."""
    shape = head.shape
    if shape.generation == 1:
        return _eagle1(head)
    config = {**_llama(shape), **_reading(shape), "architectures": ["LlamaForCausalLMEagle3"]}
    return config, _weights(head, embedding, output, "midlayer.")


def speculators_eagle(head: EagleHead, target: TargetFacts, embedding: Tensor | None, output: Tensor | None) -> Written:
    """The `speculators` format, which vLLM loads by its path alone. EAGLE-3 only."""
    shape = head.shape
    if shape.generation == 1:
        raise ConfigError("The speculators format has no EAGLE-1 any more; write it as safeailab")
    layer = _llama(shape) | {"architectures": ["LlamaForCausalLM"], "num_aux_hidden_states": len(shape.aux_layers)}
    if shape.qk_norm:
        layer |= {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    for key in ("draft_vocab_size", "tie_word_embeddings"):
        layer.pop(key, None)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "transformer_layer_config": layer,
        "draft_vocab_size": shape.draft_vocab_size,
        "tie_word_embeddings": False,
        "embed_requires_grad": False,
        "target_hidden_size": None if shape.target_hidden == shape.hidden else shape.target_hidden,
        **_reading(shape),
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
            ],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target.name or None, "architectures": []},
        },
    }
    return config, _weights(head, embedding, output, "layers.0.")


def _eagle1(head: EagleHead) -> Written:
    shape = head.shape
    extra = [name for name in ("final_norm", "first_norm", "qk_norm") if getattr(shape, name)]
    if extra or shape.output != "target":
        raise ConfigError(
            f"This EAGLE-1 head has {' and '.join(extra) or 'its own output layer'}, which no reader of that format "
            "expects; write it as foredraft"
        )
    config = _llama(shape) | {"architectures": ["LlamaForCausalLM"], "bias": shape.fc_bias, "qkv_bias": shape.qkv_bias}
    config.pop("draft_vocab_size")
    if shape.para_norm:
        config["add_para_norm"] = True
    return config, dict(head.state_dict())


def _llama(shape: EagleShape) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": shape.act,
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.rope_theta,
        "rope_scaling": shape.rope_scaling,
        "max_position_embeddings": shape.max_positions,
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": shape.draft_vocab_size,
        "attention_bias": shape.qkv_bias,
        "tie_word_embeddings": shape.output == "embedding",
    }


def _reading(shape: EagleShape) -> dict[str, Any]:
    """How an EAGLE-3 head is to be read: which layers, which norms. Written even where it is the default, since
    defaults differ."""
    outputs = [boundary - 1 for boundary in shape.aux_layers]
    reading: dict[str, Any] = {
        KEY: list(shape.aux_layers),
        "num_aux_hidden_states": len(shape.aux_layers),  # vLLM takes 3 where neither this nor eagle_config says
        "aux_layer_convention": CONVENTION,
        "norm_before_residual": shape.norm_before_residual,
        "norm_output": shape.norm_output,
        "fc_norm": shape.fc_norm,
        "norm_before_fc": shape.norm_before_fc,
    }
    if min(outputs) >= 0:  # the embeddings are no layer's output
        reading["eagle_config"] = {KEY: outputs, "use_aux_hidden_state": True}
    if shape.target_hidden != shape.hidden:
        reading["target_hidden_size"] = shape.target_hidden
    return reading


def _weights(head: EagleHead, embedding: Tensor | None, output: Tensor | None, first_layer: str) -> dict[str, Tensor]:
    """An EAGLE-3 head's tensors under the names of a format, with the target's matrices where the head has none."""
    shape = head.shape
    if not shape.final_norm:
        raise ConfigError("This EAGLE-3 head has no final norm, which every reader expects; write it as foredraft")
    tensors = {
        (first_layer + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name): tensor
        for name, tensor in head.state_dict().items()
    }
    if embedding is not None and not shape.own_embedding:
        tensors["embed_tokens.weight"] = embedding
    if shape.output != "own":
        rows = tensors.get("embed_tokens.weight") if shape.output == "embedding" else output
        if rows is None:
            raise ConfigError(
                "This head uses the target's output layer, which the format wants a copy of; pass --target"
            )
        tensors["lm_head.weight"] = rows if head.draft_ids is None else rows[head.draft_ids]
    ids = torch.arange(shape.vocab_size) if head.draft_ids is None else head.draft_ids.cpu()
    if shape.reduced or head.draft_ids is not None:
        tensors["d2t"] = draft_offsets(ids)
        tensors["t2d"] = vocabulary_mask(ids, shape.vocab_size)
    return tensors
