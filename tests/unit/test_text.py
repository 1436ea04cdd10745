"""Text from tokens: whole characters only, stop strings wherever they fall, and deltas that add up."""

from __future__ import annotations

import pytest
from byte_tokenizer import BOS, EOS, FIRST_BYTE, VOCAB, WORDS, byte_tokenizer, encode, sentencepiece_tokenizer, word
from hypothesis import given
from hypothesis import strategies as st

from foredraft.engine.text import REPLACEMENT, TextStream


def decode(tokens: list[int]) -> str:
    return str(byte_tokenizer().decode(tokens, skip_special_tokens=True))


def run(
    tokens: list[int],
    stop: tuple[str, ...] = (),
    *,
    steps: list[int] | None = None,
    min_tokens: int = 0,
    include_stop: bool = False,
) -> tuple[list[str], str | None, int]:
    """Push tokens in steps of the given sizes, releasing after each -> released texts, stop string, tokens used."""
    stream = TextStream(byte_tokenizer(), stop, include_stop=include_stop)
    deltas: list[str] = []
    left = list(tokens)
    found = None
    sizes = iter(steps or [1] * len(tokens))
    while left and found is None:
        for _ in range(next(sizes, 1)):
            if not left or found is not None:
                break
            used = len(tokens) - len(left)
            found = stream.push(left.pop(0), False, check_stop=used + 1 >= min_tokens)
        done = not left or found is not None
        deltas.append("".join(piece.text for piece in stream.release(final=done)))
    assert "".join(deltas) == stream.text
    return deltas, found, len(tokens) - len(left)


texts = st.text(st.sampled_from("abcdstop é日😀!"), max_size=14)
token_lists = st.one_of(
    texts.map(encode),
    st.lists(st.sampled_from([word(each) for each in WORDS] + encode("abcdst op")), max_size=12),
)
any_tokens = st.lists(st.one_of(st.integers(0, VOCAB - 1), st.sampled_from(encode("é日😀"))), max_size=14)
stops = st.lists(st.sampled_from(["stop", "ab", "abc", "b", "日", "é!", "top s", "dd"]), max_size=3).map(tuple)


@given(any_tokens, st.lists(st.integers(1, 4), max_size=14))
def test_deltas_add_up_to_the_decoded_answer_even_without_valid_utf8(tokens: list[int], steps: list[int]) -> None:
    assert "".join(run(tokens, steps=steps)[0]) == decode(tokens)


@given(texts)
def test_no_delta_has_half_a_character(text: str) -> None:
    deltas, _, _ = run(encode(text))
    assert "".join(deltas) == text
    assert REPLACEMENT not in "".join(deltas)


def test_bytes_that_never_become_a_character_come_at_the_end() -> None:
    deltas, _, _ = run([*encode("ok"), *encode("日")[:2]])
    assert deltas == ["o", "k", "", REPLACEMENT]


@given(token_lists, stops, st.lists(st.integers(1, 5), max_size=12), st.booleans())
def test_a_stop_string_ends_the_text_at_its_first_place_whatever_the_steps(
    tokens: list[int], stop: tuple[str, ...], steps: list[int], include_stop: bool
) -> None:
    deltas, found, used = run(tokens, stop, steps=steps, include_stop=include_stop)
    for count in range(1, len(tokens) + 1):
        so_far = decode(tokens[:count]).rstrip(REPLACEMENT)
        places = [(so_far.index(each), each) for each in stop if each in so_far]
        if places:
            at, first = min(places)
            assert (found, used) == (first, count)
            assert "".join(deltas) == so_far[: at + len(first) if include_stop else at]
            break
    else:
        assert (found, used) == (None, len(tokens))
        assert "".join(deltas) == decode(tokens)


@given(token_lists, stops, st.integers(0, 12))
def test_what_was_released_is_never_taken_back(tokens: list[int], stop: tuple[str, ...], min_tokens: int) -> None:
    """And nothing is held back without need: only the longest possible beginning of a stop string."""
    deltas, found, used = run(tokens, stop, min_tokens=min_tokens)
    text = "".join(deltas)
    assert decode(tokens[:used]).startswith(text)
    for step in range(1, len(deltas)):
        released = "".join(deltas[:step])
        held = decode(tokens[:step]).rstrip(REPLACEMENT)[len(released) :]
        assert any(each.startswith(held) for each in stop) or not held
    if found is None:
        assert text == decode(tokens)


def test_a_stop_string_across_two_steps_never_appears() -> None:
    deltas, found, _ = run(encode("so stop it"), ("stop",), steps=[5, 5])
    assert (deltas, found) == (["so ", ""], "stop")


def test_what_only_looked_like_a_stop_string_is_released_after_all() -> None:
    deltas, found, _ = run(encode("a stomp"), ("stop",), steps=[5, 1, 1])
    assert (deltas, found) == (["a ", "stom", "p"], None)


def test_a_stop_string_within_one_token_cuts_the_token() -> None:
    deltas, found, used = run([*encode("x"), word("bcd"), *encode("yz")], ("c",))
    assert ("".join(deltas), found, used) == ("xb", "c", 2)


def test_below_the_minimum_a_stop_string_is_text() -> None:
    tokens = encode("abxabx")
    assert run(tokens, ("ab",), min_tokens=4)[1:] == ("ab", 5)
    assert "".join(run(tokens, ("ab",), min_tokens=4)[0]) == "abx"


def test_special_tokens_are_skipped_or_shown() -> None:
    tokens = [BOS, *encode("a"), EOS, *encode("b")]
    for skip, text in ((True, "ab"), (False, "<bos>a<eos>b")):
        stream = TextStream(byte_tokenizer(), skip_special_tokens=skip)
        for token in tokens:
            stream.push(token, False)
        assert "".join(piece.text for piece in stream.release(final=True)) == text


def test_pieces_remember_their_draft() -> None:
    stream = TextStream(byte_tokenizer(), ("zz",))
    for token, drafted in zip(encode("a日z"), (True, False, False, True, False), strict=True):
        stream.push(token, drafted)
    assert stream.release(final=False) == [("a", True), ("日", True)]  # a character counts for its last token
    assert stream.release(final=True) == [("z", False)]


sentencepiece = st.sampled_from([*range(3, 3 + 256), *range(259, 266), *encode("日é😀"), 259, 260, 260])


@given(st.lists(sentencepiece, max_size=14))
def test_byte_fallback_tokenizers_survive_any_bytes(tokens: list[int]) -> None:
    """Their decoder rewrites bytes already decoded when an invalid one follows; no character may get lost for it."""
    stream = TextStream(sentencepiece_tokenizer())
    released = ""
    for token in tokens:
        stream.push(token, False)
        released += "".join(piece.text for piece in stream.release(final=False))
    released += "".join(piece.text for piece in stream.release(final=True))
    whole = sentencepiece_tokenizer().decode(tokens)
    assert released == stream.text
    if REPLACEMENT not in whole:
        assert released == whole
    assert len(released) >= len(whole.rstrip(REPLACEMENT)) - whole.count(REPLACEMENT)


@pytest.mark.parametrize("tokenizer", [byte_tokenizer, sentencepiece_tokenizer])
def test_a_long_answer_costs_the_same_per_token(tokenizer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window that is decoded again for each token stays short."""
    stream = TextStream(tokenizer())  # type: ignore[operator]
    longest = 0
    for _ in range(200):
        for token in encode("日a"):
            stream.push(token, False)
            longest = max(longest, len(stream._decoder._window))
        stream.release(final=False)
    assert longest <= 6
    assert stream.text == "日a" * 200
    assert encode("a") == [FIRST_BYTE + ord("a")]


class Letters:
    """Every token is one letter."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in tokens)


@pytest.mark.parametrize("text", ["a" * 3000, ("a" * 998 + "c") * 3, "ab" * 1500], ids=["all", "broken off", "pairs"])
def test_a_token_costs_little_however_long_the_stop_strings(text: str) -> None:
    """Each stop string is looked at a few times for every letter, however much of it may be there already."""
    looks = 0

    class Counted(str):
        def startswith(self, *args: object) -> bool:
            nonlocal looks
            looks += 1
            return super().startswith(*args)  # type: ignore[arg-type]

        def __getitem__(self, key: object) -> str:
            nonlocal looks
            looks += 1
            return super().__getitem__(key)  # type: ignore[index]

    stop = tuple(Counted("a" * length + "b") for length in (600, 999))
    stream = TextStream(Letters(), stop)  # type: ignore[arg-type]
    released = ""
    for token in map(ord, text):
        assert stream.push(token, False) is None
        released += "".join(piece.text for piece in stream.release(final=False))
    assert text.startswith(released)
    assert looks <= 3 * len(stop) * len(text)
