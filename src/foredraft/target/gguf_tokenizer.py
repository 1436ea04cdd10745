"""Builds a tokenizer from GGUF metadata: byte-level BPE ("gpt2") and SentencePiece BPE ("llama").

Text must split into the pieces that the model's merges were learned on, and a GGUF only names that split
(`tokenizer.ggml.pre`). The names whose expression is known are listed here; any other is refused, since a wrong split
gives plausible text and quietly worse answers. Control tokens become special tokens, user-defined ones are matched
whole, and a BOS token is added where llama.cpp adds one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foredraft.errors import LoadError
from foredraft.target.gguf_file import GgufFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

__all__ = ["build_tokenizer", "stop_token_ids", "wrap_tokenizer"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SYMBOLS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "gpt2": None,  # ByteLevel's own expression
    "digits": None,  # every digit by itself, then as above
    "llama3": rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{SYMBOLS_AND_SPACE}",
    "qwen2": rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{SYMBOLS_AND_SPACE}",
    "tekken": CASED_WORDS % ("", "") + rf"|\p{{N}}|{CASED_REST}",
    "gpt4o": CASED_WORDS % (f"{CONTRACTIONS}?", f"{CONTRACTIONS}?") + rf"|\p{{N}}{{1,3}}|{CASED_REST}",
}
SPLIT_OF = {
    **dict.fromkeys(("gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "smaug-bpe", "dbrx"), "llama3"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), "qwen2"),
    "tekken": "tekken",
    **dict.fromkeys(("gpt-4o", "llama4"), "gpt4o"),
}
# these add BOS unless told otherwise, and take a word that is a token whole, whatever the merges say
LLAMA3_LIKE = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")
TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
PHI3_UNSTRIPPED = ("<s>", "<unk>", "<|endoftext|>")  # Phi-3's other special tokens swallow the white space after them


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The `tokenizers` object for a file's vocabulary; raises LoadError for a kind that isn't known to be right."""
    kind = file.metadata.get("tokenizer.ggml.model")
    tokens = _tokens(file)
    if kind == "gpt2":
        tokenizer = _byte_level(file, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(file, tokens)
    else:
        raise LoadError(
            f"{file.path} has a tokenizer of kind {kind!r}, and only 'gpt2' and 'llama' can be read from GGUF; "
            "use the safetensors checkpoint"
        )
    _add_special_tokens(tokenizer, file, tokens)
    _add_bos(
        tokenizer,
        file,
        tokens,
        default=kind == "llama" or file.metadata.get("tokenizer.ggml.pre") in LLAMA3_LIKE,
    )
    return tokenizer


def wrap_tokenizer(file: GgufFile, tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The same tokenizer as transformers knows it, with its named special tokens and chat template."""
    from transformers import PreTrainedTokenizerFast

    tokens = _tokens(file)
    named: dict[str, Any] = {}
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = special_id(file, key)
        if token is not None:
            named[f"{role}_token"] = tokens[token]
    template = file.metadata.get("tokenizer.chat_template")
    fast: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = fast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **named)
    wrapped.chat_template = template if isinstance(template, str) and template.strip() else None
    return wrapped


def special_id(file: GgufFile, role: str) -> int | None:
    """Id of the token with a role ("bos", "eos", "eot", "unknown", "padding"), if the file names a valid one."""
    token = file.metadata.get(f"tokenizer.ggml.{role}_token_id")
    return token if isinstance(token, int) and 0 <= token < len(_tokens(file)) else None


def stop_token_ids(file: GgufFile) -> list[int]:
    """Ids that end a text or a turn; an unnamed end of turn is looked for by its usual texts, as in llama.cpp."""
    tokens = _tokens(file)
    ends = [special_id(file, role) for role in ("eos", "eot", "eom")]
    if ends[1] is None:
        ends.append(next((tokens.index(text) for text in TURN_ENDS if text in tokens), None))
    return sorted({end for end in ends if end is not None})


def _tokens(file: GgufFile) -> list[str]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise LoadError(f"{file.path} holds no vocabulary (tokenizer.ggml.tokens); use a .gguf file with its tokenizer")
    return tokens


def _types(file: GgufFile, tokens: list[str]) -> list[int]:
    types = file.metadata.get("tokenizer.ggml.token_type")
    return types if isinstance(types, list) and len(types) == len(tokens) else [NORMAL] * len(tokens)


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = file.metadata.get("tokenizer.ggml.pre")
    split = SPLIT_OF.get(name) if isinstance(name, str) else None
    if split is None:
        raise LoadError(
            f"{file.path} splits text by {name!r} (tokenizer.ggml.pre), a way foredraft doesn't know; use the "
            f"safetensors checkpoint, or a file with one of {', '.join(SPLIT_OF)}"
        )
    merges = file.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise LoadError(
            f"{file.path} holds no merges (tokenizer.ggml.merges); use a .gguf file with its whole tokenizer"
        )
    pairs = [(merge[:space], merge[space + 1 :]) for merge in merges if (space := merge.find(" ", 1)) > 0]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=name in LLAMA3_LIKE))
    expression = SPLITS[split]
    steps: list[Any] = []
    if split == "digits":
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if expression is not None:
        steps.append(pre_tokenizers.Split(Regex(expression), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=expression is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if name in ("qwen2", "deepseek-r1-qwen"):  # as these models' own tokenizer.json does
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise LoadError(
            f"{file.path} holds no token scores (tokenizer.ggml.scores); use a .gguf file with its whole tokenizer"
        )
    unknown = special_id(file, "unknown")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges_by_score(tokens, scores, _types(file, tokens)),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    space = normalizers.Replace(" ", "▁")
    decoding: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space])
        decoding.append(decoders.Strip(content=" ", left=1, right=0))
    else:
        tokenizer.normalizer = space
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _merges_by_score(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union scores best: as ranked merges, all splits, best first."""
    pieces = {
        token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind in (NORMAL, USER_DEFINED)
    }
    ranked: list[tuple[float, int, str, str]] = []
    for token, score in pieces.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in pieces and right in pieces:
                ranked.append((-score, cut, left, right))
    ranked.sort()
    return [(left, right) for _, _, left, right in ranked]


def _add_special_tokens(tokenizer: Tokenizer, file: GgufFile, tokens: list[str]) -> None:
    from tokenizers import AddedToken

    strips = file.architecture == "phi3" and file.metadata.get("tokenizer.ggml.model") == "llama"
    added = []
    for token, kind in zip(tokens, _types(file, tokens), strict=True):
        if kind in (CONTROL, UNKNOWN) and token:
            rstrip = strips and token not in PHI3_UNSTRIPPED
            added.append(AddedToken(token, special=True, normalized=False, rstrip=rstrip))
        elif kind == USER_DEFINED and token:
            added.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_tokens(added)


def _add_bos(tokenizer: Tokenizer, file: GgufFile, tokens: list[str], default: bool) -> None:
    """Put BOS first if the file, or else llama.cpp's default, says so. EOS is never added: prompts go on."""
    from tokenizers.processors import TemplateProcessing

    bos = special_id(file, "bos")
    if bos is None or not file.metadata.get("tokenizer.ggml.add_bos_token", default):
        return
    token = tokens[bos]
    tokenizer.post_processor = TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", f"{token}:1", "$B:1"], special_tokens=[(token, bos)]
    )
