"""Tiny random checkpoints on disk, and the sentence that loading a broken one gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

from foredraft.errors import LoadError
from foredraft.target.loading import load_target

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "eos_token_id": 2,
}


def write_folder(path: Path, dtype: torch.dtype = torch.float32, family: str = "llama", **changes: Any) -> Path:
    """A tiny random checkpoint as `save_pretrained` writes one."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**{**SHAPE, **changes}), dtype=dtype)
    model.save_pretrained(path)
    words = ["<unk>", "<s>", "</s>", "a", "b", "c"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(path)
    return path


def change_config(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


def refusal(model: object, kind: type[Exception] = LoadError, **options: Any) -> str:
    """The sentence a model is refused with; one line, without another library's traceback."""
    with pytest.raises(kind) as caught:
        load_target(str(model), **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence
