"""Writes tiny random models as GGUF files with the `gguf` package's own writer, names and quantisers.

What llama.cpp's converter rearranges is rearranged here from its published rules, so that reading and writing are told
apart by more than a shared table. Every file comes with the model it must load as: the same architecture, holding the
values that the stored blocks decode to.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

SHAPE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "rope_theta": 20000.0,
}
ARCHITECTURES = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "gemma2": ("gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 32}),
    "gemma3": ("gemma3_text", {"sliding_window": 8, "query_pre_attn_scalar": 32, "num_hidden_layers": 7}),
    "phi3": ("phi3", {"head_dim": 16, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 128}),
}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 64}  # whole blocks of 256
UNQUANTISABLE = {
    Kind.Q4_K: (0, 2),
    Kind.Q6_K: (208,),
}  # no quantiser exists: random blocks, their scales at these bytes


class Written(NamedTuple):
    path: Path
    expected: PreTrainedModel


def write_model(path: Path, architecture: str = "llama", kind: Kind = Kind.F32, **changes: object) -> Written:
    """Write a seeded random model of an architecture with its matrices stored as `kind`."""
    family, own = ARCHITECTURES[architecture]
    wide = WIDE if kind in UNQUANTISABLE else {}
    config = CONFIG_MAPPING[family](**{**SHAPE, **own, **wide, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        for parameter in model.parameters():  # norms and biases must matter, and attention must not be flat
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, architecture, config)
    write_vocabulary(writer, config.vocab_size)
    names = gguf.get_tensor_name_map(_arch(architecture), config.num_hidden_layers)
    generator = np.random.default_rng(5)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in tied:
                continue
            stem, suffix = name.rsplit(".", 1)
            stored_name = f"{names.get_name(stem)}.{suffix}"
            order = _row_order(architecture, name, config, parameter.shape[0])
            offset = 1.0 if architecture.startswith("gemma") and stored_name.endswith("norm.weight") else 0.0
            values = parameter.numpy()[order] + np.float32(offset)
            this_kind = kind if parameter.dim() == 2 else Kind.F32
            blocks, decoded = _encode(values, this_kind, generator)
            writer.add_tensor(stored_name, blocks, raw_dtype=None if this_kind is Kind.F32 else this_kind)
            parameter[torch.from_numpy(order)] = torch.from_numpy(decoded - np.float32(offset))
    finish(writer)
    return Written(path, model)


def write_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """A byte-level vocabulary of three control tokens, the 256 bytes, and a few merges."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld"]
    tokens = ["<unk>", "<s>", "</s>", *letters, *(merge.replace(" ", "") for merge in merges)]
    types = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3)
    spare = size - len(tokens)
    tokens += [f"[PAD{index}]" for index in range(spare)]
    types += [gguf.TokenType.UNUSED] * spare
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rewrite(source: Path, target: Path, settings: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
    """Copy a GGUF file with some metadata set (None removes a key) and some tensors added."""
    reader = gguf.GGUFReader(source)
    architecture = str(settings.pop("general.architecture", reader.fields["general.architecture"].contents()))
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")) and key not in settings:
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    for key, value in settings.items():
        if value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for tensor in reader.tensors:
        if tensor.name not in tensors:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    finish(writer)


def _arch(name: str) -> gguf.MODEL_ARCH:
    return next(arch for arch, label in gguf.MODEL_ARCH_NAMES.items() if label == name)


def _write_metadata(writer: gguf.GGUFWriter, architecture: str, config: object) -> None:
    heads, head_dim = config.num_attention_heads, config.head_dim
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(SHAPE["rope_theta"])
    if config.hidden_size // heads != head_dim:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if architecture in ("llama", "phi3"):
        writer.add_rope_dimension_count(head_dim // 2 if architecture == "phi3" else head_dim)
    if architecture.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _row_order(architecture: str, name: str, config: object, rows: int) -> NDArray[np.int64]:
    """Which row of the checkpoint each stored row is: Llama's query and key rows alternate between halves of a head."""
    order = np.arange(rows)
    if architecture != "llama" or not any(part in name for part in ("q_proj", "k_proj")):
        return order
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    return order.reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(rows)


def _encode(
    values: NDArray[np.float32], kind: Kind, generator: np.random.Generator
) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
    """Stored blocks and the values they stand for."""
    if kind not in UNQUANTISABLE:
        blocks = gguf.quantize(values, kind)
        return blocks, gguf.dequantize(blocks, kind).astype(np.float32)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (values.size // block, size), dtype=np.uint8)
    for scale in UNQUANTISABLE[kind]:
        blocks[:, scale : scale + 2] = np.full((len(blocks), 1), 2e-4, np.float16).view(np.uint8)
    blocks = blocks.reshape(values.shape[0], -1)
    return blocks, gguf.dequantize(blocks, kind)
