"""A tiny language model as a folder on disk, made in a moment: random weights, a byte-level tokenizer, a chat template.

It writes readable ASCII and repeats itself soon, so that drafts get accepted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from byte_tokenizer import BOS, EOS, FIRST_BYTE, PAD, byte_tokenizer
from safetensors.torch import save_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["CONTEXT", "EOS", "save_tiny_checkpoint"]

CONTEXT = 256
SCALES = {"embed": 0.35, "head": 0.8, "": 0.08}  # layers that change little and a decided head: it soon repeats itself
READABLE = [FIRST_BYTE + byte for byte in b"\n" + bytes(range(32, 127))]
CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def save_tiny_checkpoint(
    folder: Path,
    *,
    seed: int = 1,
    chat_template: str | None = CHAT_TEMPLATE,
    tokenizer: PreTrainedTokenizerBase | None = None,
    context: int = CONTEXT,
) -> Path:
    """Write the model to `folder`; `tokenizer` is the byte-level one by default."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer or byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, next(scale for part, scale in SCALES.items() if part in name))
    head = model.lm_head.weight.data
    head[[token for token in range(len(head)) if token not in READABLE]] = 0  # far below the best of the others
    config.save_pretrained(folder)
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False, "eos_token_id": EOS}))
    return folder
