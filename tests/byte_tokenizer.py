"""Tokenizers with a token per byte, so that characters beyond ASCII are split, and tokens of several characters."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAD, BOS, EOS = 0, 1, 2
FIRST_BYTE = 3
WORDS = ("stop", "st", "op", "abc", "bcd", " world", "é!", "日本")
FIRST_WORD = FIRST_BYTE + 256
VOCAB = FIRST_WORD + len(WORDS)


def encode(text: str) -> list[int]:
    """One token per byte of the UTF-8 form."""
    return [FIRST_BYTE + byte for byte in text.encode()]


def word(text: str) -> int:
    """The token that is this whole word."""
    return FIRST_WORD + WORDS.index(text)


@cache
def byte_tokenizer() -> PreTrainedTokenizerBase:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    visible = _visible_bytes()
    names = ["<pad>", "<bos>", "<eos>", *visible, *("".join(visible[byte] for byte in each.encode()) for each in WORDS)]
    backend = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )


def _visible_bytes() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


@cache
def sentencepiece_tokenizer() -> PreTrainedTokenizerBase:
    """Llama 2's kind: words begin with "▁", unknown characters fall back to bytes, one leading space is stripped."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁a",
        "a",
        "b",
        "▁stop",
        "st",
        "op",
    ]
    backend = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
