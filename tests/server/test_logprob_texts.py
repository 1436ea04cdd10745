"""Texts, bytes and offsets of the tokens that log-probabilities belong to, where characters span tokens above all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import BOS, EOS, FIRST_BYTE, VOCAB, byte_tokenizer, encode, sentencepiece_tokenizer, word
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from tiny_checkpoint import save_tiny_checkpoint
from tiny_server import client_of, load_tiny, tiny_service

from foredraft.engine.logprobs import TokenBytes
from foredraft.server.answers import TextPlace, token_name

SPLIT = "né 😀 日本"
FORCED = {"structured_outputs": {"choice": [SPLIT]}, "max_tokens": 40}


@pytest.fixture(scope="module")
def client(tiny_checkpoint: Path) -> Iterator[TestClient]:
    """Here every token may be asked for as an alternative."""
    with client_of(tiny_service(lambda: load_tiny(tiny_checkpoint), max_logprobs=VOCAB)) as client:
        yield client


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A model with Llama 2's kind of tokenizer."""
    folder = save_tiny_checkpoint(tmp_path_factory.mktemp("worded"), tokenizer=sentencepiece_tokenizer())
    with client_of(tiny_service(lambda: load_tiny(folder), max_logprobs=VOCAB)) as client:
        yield client


def near(value: Any) -> Any:
    """Both times the cache was another, and so were the sums."""
    return None if value is None else pytest.approx(value, abs=1e-6)


def complete(client: TestClient, **fields: Any) -> dict[str, Any]:
    """The one choice, after the same was streamed and found to say the same."""
    body = {"prompt": "Once upon", "max_tokens": 12, "temperature": 0, "logprobs": 1, **fields}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    parts = [chunk["choices"][0] for chunk in _events(client.post("/v1/completions", json={**body, "stream": True}))]
    assert "".join(part["text"] for part in parts) == choice["text"]
    streamed = {name: [value for part in parts for value in part["logprobs"][name]] for name in choice["logprobs"]}
    for name in ("tokens", "text_offset"):
        assert streamed[name] == choice["logprobs"][name]
    assert streamed["token_logprobs"] == [near(value) for value in choice["logprobs"]["token_logprobs"]]
    assert streamed["top_logprobs"] == [near(top) for top in choice["logprobs"]["top_logprobs"]]
    return choice


def converse(client: TestClient, **fields: Any) -> tuple[str, list[dict[str, Any]]]:
    """Text and log-probabilities of an answer, after the same was streamed."""
    messages = [{"role": "user", "content": "Say something."}]
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, "logprobs": True, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    chunks = _events(client.post("/v1/chat/completions", json={**body, "stream": True}))
    parts = [part for chunk in chunks if (part := chunk["choices"][0]["logprobs"])]
    streamed = [entry for part in parts for entry in part["content"]]
    for entry, other in zip(streamed, choice["logprobs"]["content"], strict=True):
        assert (entry["token"], entry["bytes"]) == (other["token"], other["bytes"])
        assert entry["logprob"] == near(other["logprob"])
    return choice["message"]["content"], choice["logprobs"]["content"]


def _events(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [
        json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n") if event.startswith("data: {")
    ]


def rebuilt(tokens: list[str]) -> bytes:
    """As clients of OpenAI's did it."""
    return b"".join(
        token[6:].encode().decode("unicode_escape").encode("latin-1") if token.startswith("bytes:") else token.encode()
        for token in tokens
    )


def begins(tokens: list[bytes]) -> list[int]:
    """Where each token's first character begins in their text."""
    before = [b"", *accumulate(tokens)][: len(tokens)]
    return [len(text.decode(errors="ignore")) for text in before]


@pytest.mark.parametrize("make", [byte_tokenizer, sentencepiece_tokenizer])
def test_bytes_are_what_grammars_take_tokens_for(make: Any) -> None:
    llguidance = pytest.importorskip("llguidance.hf")
    tokenizer = make()
    known, read = llguidance.from_tokenizer(tokenizer), TokenBytes(tokenizer)
    others = [token for token in range(len(tokenizer)) if token != FIRST_BYTE + 0xFF]  # where llguidance has its marks
    assert [read.of(token) for token in others] == [known.decode_bytes([token]) for token in others]
    assert read.of(FIRST_BYTE + 0xFF) == b"\xff"
    assert read.of(len(tokenizer)) == b""  # models may have more rows than there are tokens


def test_bytes_at_the_beginning_and_of_special_tokens() -> None:
    words, letters = TokenBytes(sentencepiece_tokenizer()), TokenBytes(byte_tokenizer())
    assert (words.of(260), words.of(260, begins=True)) == (b" a", b"a")
    assert (letters.of(word(" world")), letters.of(word(" world"), begins=True)) == (b" world", b" world")
    assert (letters.of(EOS), letters.of(EOS, skip_special=True)) == (b"<eos>", b"")
    assert words.of(259, skip_special=True) == b" "  # has no text by itself, yet isn't special


def test_a_tokenizer_written_in_python_has_its_texts() -> None:
    class Written:
        all_special_ids = (2,)

        def decode(self, tokens: list[int]) -> str:
            return {1: "é", 2: "</s>"}[tokens[0]]

    read = TokenBytes(Written())  # type: ignore[arg-type]
    assert (read.of(1), read.of(2), read.of(2, skip_special=True)) == ("é".encode(), b"</s>", b"")


def test_chat_has_the_bytes_of_the_text(client: TestClient) -> None:
    text, entries = converse(client, **FORCED, top_logprobs=VOCAB)
    assert text == SPLIT
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == SPLIT.encode()
    assert entries[-1]["token"] == "<eos>"
    assert [entry["token"] for entry in entries[:3]] == ["n", "\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}"]
    of_tokens = {bytes(top["bytes"]) for top in entries[0]["top_logprobs"]}
    assert of_tokens >= {bytes([byte]) for byte in range(256)}


def test_special_tokens_have_bytes_where_the_text_has_them(client: TestClient) -> None:
    for shown in (False, True):
        fields = {"logit_bias": {str(BOS): 100}, "max_tokens": 3, "skip_special_tokens": not shown}
        text, entries = converse(client, **fields)
        assert text == ("<bos>" * 3 if shown else "")
        assert b"".join(bytes(entry["bytes"]) for entry in entries) == text.encode()
        assert [entry["token"] for entry in entries] == ["<bos>"] * 3
        choice = complete(client, **fields)
        assert choice["logprobs"]["text_offset"] == ([0, 5, 10] if shown else [0, 0, 0])


def test_completions_write_parts_of_characters_as_bytes(client: TestClient) -> None:
    choice = complete(client, **FORCED)
    tokens, ending = choice["logprobs"]["tokens"][:-1], choice["logprobs"]["tokens"][-1]
    assert (choice["text"], ending) == (SPLIT, "<eos>")
    assert tokens[:3] == ["n", r"bytes:\xc3", r"bytes:\xa9"]
    assert rebuilt(tokens) == SPLIT.encode()
    assert choice["logprobs"]["text_offset"][:-1] == begins([rebuilt([token]) for token in tokens])


def test_echo_begins_with_the_whole_first_token(client: TestClient) -> None:
    prompt = [word("stop"), *encode(" café 😀"), word("日本")]
    choice = complete(client, prompt=prompt, echo=True, max_tokens=3)
    logprobs = choice["logprobs"]
    assert choice["text"].startswith("stop café 😀日本")
    assert logprobs["tokens"][:2] == ["stop", " "]
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert rebuilt(logprobs["tokens"]) == choice["text"].encode()
    assert logprobs["text_offset"] == begins([rebuilt([token]) for token in logprobs["tokens"]])
    assert logprobs["text_offset"][:6] == [0, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        (encode("😀ab"), r"bytes:\xf0"),
        ([*encode("ab"), FIRST_BYTE + 0x98, *encode("c")], "a"),
        ([*encode("a"), *encode("😀")[:2]], "a"),
        ([BOS, *encode("ab")], "<bos>"),
        (encode("a"), "a"),
    ],
)
def test_echo_of_any_tokens_is_followed_by_the_answer_in_its_place(
    client: TestClient, prompt: list[int], first: str
) -> None:
    choice = complete(client, prompt=prompt, echo=True, max_tokens=4)
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][0] == first
    assert len(logprobs["tokens"]) == len(prompt) + 4
    for token, offset in zip(logprobs["tokens"][-4:], logprobs["text_offset"][-4:], strict=True):
        assert choice["text"][offset : offset + len(token)] == token
    assert logprobs["text_offset"][-4] == len(byte_tokenizer().decode(prompt))


def test_every_alternative_that_was_asked_for_is_there(client: TestClient) -> None:
    logprobs = complete(client, prompt="né 😀", echo=True, logprobs=VOCAB, max_tokens=2)["logprobs"]
    assert [len(top) for top in logprobs["top_logprobs"][1:]] == [VOCAB] * (len(logprobs["tokens"]) - 1)
    for token, value, top in list(zip(*(logprobs[name] for name in logprobs if name != "text_offset"), strict=True))[
        1:
    ]:
        assert top[token] == value


def test_tokens_that_read_the_same_are_told_apart(worded: TestClient) -> None:
    """The byte "<0x61>" and the letter "a", for which there is a token, too."""
    logprobs = complete(worded, logprobs=VOCAB, max_tokens=2)["logprobs"]
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert len(top) == len(sentencepiece_tokenizer())
        assert top[token] == value
        assert len({f"token_id:{FIRST_BYTE + ord('a')}", "token_id:261"} & top.keys()) == 1


def test_spaces_that_a_decoder_leaves_out(worded: TestClient) -> None:
    """The first word's space isn't in the text, those of the others are."""
    fields = {"logit_bias": {"260": 100}, "max_tokens": 3}  # "▁a"
    text, entries = converse(worded, **fields)
    assert text == "a a a"
    assert [entry["token"] for entry in entries] == ["a", " a", " a"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == b"a a a"
    choice = complete(worded, **fields, prompt="stop a", echo=True)
    assert choice["text"] == "stop aa a a"
    assert choice["logprobs"]["text_offset"][-5:] == [4, 5, 6, 7, 9]


def test_offsets_are_the_same_in_a_stream_that_holds_text_back(client: TestClient) -> None:
    text = complete(client, max_tokens=24)["text"]
    choice = complete(client, max_tokens=24, stop=[text[5:10]])
    assert choice["text"] == text[: text.index(text[5:10])]
    offsets = choice["logprobs"]["text_offset"]
    assert offsets == list(range(len(choice["text"]) + 5))


@given(st.binary(max_size=12), st.lists(st.integers(1, 3), min_size=12, max_size=12))
def test_places_agree_with_the_text(raw: bytes, sizes: list[int]) -> None:
    """However bytes are dealt to tokens, and whatever they are."""
    ends = list(accumulate(sizes, initial=0))
    tokens = [raw[start:end] for start, end in pairwise(ends)]
    place = TextPlace()
    offsets = [place.advance(token) for token in tokens]
    place.close()
    text = b"".join(tokens).decode(errors="replace")
    assert place.advance(b"") == len(text)
    assert offsets == sorted(offsets)
    for token, offset in zip(tokens, offsets, strict=True):
        if token.isascii():
            assert text[offset : offset + len(token)] == token.decode()
    assert rebuilt([token_name(token) for token in tokens]) == b"".join(tokens)
