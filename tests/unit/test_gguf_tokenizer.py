"""Tokenizers from GGUF files: the same ids and the same text as the tokenizers they were written from."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_files import finish, rewrite, write_model

from foredraft.target.gguf import gguf_tokenizer
from foredraft.target.gguf_file import read_gguf
from foredraft.target.gguf_tokenizer import SPLIT_OF
from foredraft.target.loading import load_target

TEXTS = [
    "Hello world! 12345",
    "don't  WE'LL\n\n\tx = f(y)[0]  # ok\n",
    "naïve café — 日本語 👩‍👩‍👧 e\u0301",
    " leading and trailing ",
    "",
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))


def write_tokenizer(path: Path, pre: str, architecture: str = "llama", **settings: object) -> Path:
    written = write_model(path.with_name("source.gguf"), architecture)
    rewrite(written.path, path, {"tokenizer.ggml.pre": pre, **settings}, {})
    return path


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["HelloWorld", "'s", "Ġ12345", ",", "Ġ", "Ġx", "Ċ", "Ċ", "y"]),
        ("smollm", ["HelloWorld", "'s", "Ġ", "1", "2", "3", "4", "5", ",", "Ġ", "Ġx", "Ċ", "Ċ", "y"]),
        ("llama-bpe", ["HelloWorld", "'s", "Ġ", "123", "45", ",", "Ġ", "Ġx", "ĊĊ", "y"]),
        ("qwen2", ["HelloWorld", "'s", "Ġ", "1", "2", "3", "4", "5", ",", "Ġ", "Ġx", "ĊĊ", "y"]),
        ("tekken", ["Hello", "World", "'s", "Ġ", "1", "2", "3", "4", "5", ",", "Ġ", "Ġx", "ĊĊ", "y"]),
        ("gpt-4o", ["Hello", "World's", "Ġ", "123", "45", ",", "Ġ", "Ġx", "ĊĊ", "y"]),
    ],
)
def test_text_is_split_as_the_file_says(pre: str, pieces: list[str], tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(write_tokenizer(tmp_path / "m.gguf", pre))
    split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("HelloWorld's 12345,  x\n\ny")
    assert [piece for piece, _ in split] == pieces


@pytest.mark.parametrize(("pre", "reference"), [("gpt-2", "GPT2Tokenizer"), ("qwen2", "Qwen2Tokenizer")])
def test_same_ids_as_transformers_own_class(pre: str, reference: str, tmp_path: Path) -> None:
    import transformers

    path = write_tokenizer(tmp_path / "m.gguf", pre, "qwen2")
    metadata = read_gguf(path).metadata
    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    theirs, ours = getattr(transformers, reference)(vocab=vocabulary, merges=merges), gguf_tokenizer(path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == (text if pre == "gpt-2" else text.replace("e\u0301", "é"))


@pytest.mark.parametrize("pre", SPLIT_OF)
def test_every_known_split_gives_the_text_back(pre: str, tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(write_tokenizer(tmp_path / "m.gguf", pre))
    for text in TEXTS[:2] + TEXTS[3:]:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_special_tokens_bos_template_and_ends(tmp_path: Path) -> None:
    template = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
    path = write_tokenizer(
        tmp_path / "m.gguf",
        "gpt-2",
        **{
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.chat_template": template,
            "tokenizer.ggml.eot_token_id": 0,
        },
    )
    loaded = load_target(str(path))
    tokenizer = loaded.tokenizer
    hello = tokenizer.convert_tokens_to_ids("hello")
    assert tokenizer.encode("hello") == [1, hello]
    assert tokenizer.encode("hello</s>", add_special_tokens=False) == [hello, 2]
    assert tokenizer.decode([1, hello, 2], skip_special_tokens=True) == "hello"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == "<s>hello</s>"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert loaded.eos_token_ids == (0, 2)


@pytest.mark.parametrize(("pre", "adds"), [("gpt-2", False), ("llama-bpe", True), ("tekken", True), ("qwen2", False)])
def test_bos_by_default_where_llama_cpp_adds_one(pre: str, adds: bool, tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(write_tokenizer(tmp_path / "m.gguf", pre))
    assert (tokenizer.encode("hello")[0] == 1) is adds


def test_sentencepiece_vocabulary_gives_sentencepiece_ids(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(Path(gguf.__file__).parent.joinpath("constants.py").read_text().splitlines()[:1500]))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "spm"),
        model_type="bpe",
        vocab_size=800,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    size = theirs.vocab_size()
    kinds = [
        gguf.TokenType.UNKNOWN
        if theirs.is_unknown(i)
        else gguf.TokenType.CONTROL
        if theirs.is_control(i)
        else gguf.TokenType.BYTE
        if theirs.is_byte(i)
        else gguf.TokenType.NORMAL
        for i in range(size)
    ]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([theirs.id_to_piece(i) for i in range(size)])
    writer.add_token_scores([theirs.get_score(i) for i in range(size)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(theirs.bos_id())
    writer.add_eos_token_id(theirs.eos_id())
    writer.add_unk_token_id(theirs.unk_id())
    writer.add_tensor("w", np.zeros((1, 32), np.float32))
    finish(writer)
    ours = gguf_tokenizer(tmp_path / "m.gguf")
    for text in [*TEXTS[:4], "self.add_key_value(Keys.LLM.CONTEXT_LENGTH, 42)", "class   MODEL_ARCH(IntEnum):"]:
        assert ours.encode(text) == [theirs.bos_id(), *theirs.encode(text)]
        assert ours.decode(ours.encode(text), skip_special_tokens=True) == text


@pytest.mark.parametrize(("pre", "whole"), [("gpt-2", False), ("llama-bpe", True), ("tekken", True), ("dbrx", False)])
def test_a_word_that_is_a_token_without_merges(pre: str, whole: bool, tmp_path: Path) -> None:
    tokens = list(read_gguf(write_model(tmp_path / "x.gguf").path).metadata["tokenizer.ggml.tokens"])
    tokens[-1] = "xyz"
    tokenizer = gguf_tokenizer(write_tokenizer(tmp_path / "m.gguf", pre, **{"tokenizer.ggml.tokens": tokens}))
    assert (len(tokenizer.encode("xyz", add_special_tokens=False)) == 1) is whole
