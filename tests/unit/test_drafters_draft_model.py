"""A draft model's cache, its vocabulary, and its noise: what it drafts is what the model says, whatever came before."""

from __future__ import annotations

from collections.abc import Sequence as Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from checkpoints import write_folder

from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.guesses import Ranking, guess
from foredraft.drafters.open_draft_model import check_vocabularies
from foredraft.engine.engine import Engine
from foredraft.engine.llm import LLM
from foredraft.errors import ConfigError, LoadError
from foredraft.sampling import Rows
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache
from foredraft.target.target import Target
from foredraft.testing import CapriciousController, decode, mixed_asks, random_target
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence


class Checked(DraftModelDrafter):
    """Compares every draft with one made from scratch, without a cache."""

    target: Target
    drafted = 0

    def bind(self, target: Target) -> None:
        super().bind(target)
        self.target = target

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        tree = super().propose(batch, budget)
        for sequence, tokens in zip(batch, tree.tokens.tolist(), strict=True):
            path: list[int] = []
            for token in tokens:
                if token >= 0:
                    assert token == self.from_scratch(sequence, path)
                    path.append(token)
                    self.drafted += 1
        return tree

    def from_scratch(self, sequence: Sequence, path: list[int]) -> int:
        decoder = self.target.decoder.truncated(1)
        text = sequence.tokens + path
        cache = KVCache(decoder.cache_shape, 1, decoder.cache_dtype)
        cache.reserve(len(text))
        flat = FlatPass(torch.tensor(text), torch.arange(len(text)), (Segment(0, 0, 0, len(text)),))
        logits = decoder.head(decoder.forward(flat, cache).last[-1:])
        rows = Rows(sequence, [tuple(path)], self.target.eos_token_ids)
        vocab_size = self.target.vocab_size
        return int(guess(logits, rows, 1, draft_ids=None, vocab_size=vocab_size, ranking=Ranking.PERTURBED).tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kv_room", [None, 60])
def test_drafts_are_those_of_an_empty_cache(temperature: float, kv_room: int | None) -> None:
    """After rejections, plain steps, preemptions and aborts, with several sequences at once."""
    asks = mixed_asks(96, temperature, max_tokens=10)
    drafter = Checked("target:1", draft_min_token_prob=0.0)
    engine = Engine(
        random_target(),
        drafter,
        num_speculative_tokens=4,
        controller=CapriciousController(),
        kv_room=kv_room,
        max_batched_tokens=24,
    )
    decode(engine, asks, aborts={6: asks[2].name})
    assert drafter.drafted > 30


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_model_that_drafts_for_itself_is_always_right(temperature: float) -> None:
    """With all layers of the target and the same noise, every draft is accepted, sampled or not."""
    engine = Engine(random_target(), DraftModelDrafter("target:2", draft_min_token_prob=0.0), num_speculative_tokens=4)
    params = SamplingParams(temperature=temperature, max_tokens=21, ignore_eos=True, seed=5, top_p=0.9)
    request = engine.add([3, 4, 5], params)
    while not engine.idle:
        engine.step()
    statistics = request.choices[0].output.speculative_decoding
    assert statistics.accepted == statistics.drafted > 0
    assert statistics.acceptance_length > 4


def test_no_more_is_kept_than_the_target_keeps() -> None:
    """Of texts that are over: the room for keys and values bounds the draft model's, too."""
    drafter = DraftModelDrafter("target:1")
    engine = Engine(random_target(), drafter, num_speculative_tokens=3, kv_room=60)
    cache = drafter._cache
    for start in range(8):
        prompt = [3 + (7 * token * token + token) % 90 for token in range(start, 24)]
        engine.add(prompt, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
        while not engine.idle:
            engine.step()
        assert 20 < sum(len(cache.tokens(slot)) for slot in range(cache.slots)) <= 60


def test_a_long_prompt_is_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.drafters.draft_model.MOST_ROWS", 7)
    drafter = Checked("target:1", draft_min_token_prob=0.0)
    engine = Engine(random_target(), drafter, num_speculative_tokens=3)
    engine.add([3 + token % 50 for token in range(40)], SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))
    while not engine.idle:
        engine.step()
    assert drafter.drafted > 5


def test_asked_twice_it_says_the_same() -> None:
    """No token came between, so everything but the draft's own cached tokens is still wanted."""
    drafter = DraftModelDrafter("target:1", draft_min_token_prob=0.0)
    drafter.bind(random_target())
    sequence = Sequence(0, SamplingParams(temperature=0.0), [3, 4, 5], 3, 0)
    drafter.begin(sequence)
    first, second, third = (drafter.propose([sequence], [nodes]).tokens.tolist() for nodes in (4, 4, 2))
    assert first == second == [[*third[0], *first[0][2:]]]
    assert len(first[0]) == 4


def test_an_unlikely_chain_ends_early() -> None:
    def drafted(least: float) -> int:
        engine = Engine(
            random_target(), DraftModelDrafter("target:1", draft_min_token_prob=least), num_speculative_tokens=6
        )
        request = engine.add([3, 4, 5], SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
        while not engine.idle:
            engine.step()
        return request.choices[0].output.speculative_decoding.drafted

    assert drafted(0.6) < drafted(0.0)


def folder_with_vocabulary(path: Path, size: int) -> Path:
    return write_folder(path, torch.float32, vocab_size=size)


@pytest.mark.parametrize("padded", [72, 6])
def test_vocabularies_may_be_padded_differently(tmp_path: Path, padded: int) -> None:
    target = folder_with_vocabulary(tmp_path / "target", 64)
    draft = folder_with_vocabulary(tmp_path / "draft", padded)
    params = SamplingParams(
        temperature=0.8, max_tokens=24, seed=1, ignore_eos=True, repetition_penalty=1.2, logit_bias={63: 1.0}
    )
    plain = LLM(str(target), max_model_len=96).generate([[3, 4, 5]], params)
    config = {"model": str(draft), "num_speculative_tokens": 3, "draft_min_token_prob": 0.0}
    fast = LLM(str(target), max_model_len=96, speculative_config=config).generate([[3, 4, 5]], params)
    assert fast[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert fast[0].outputs[0].speculative_decoding.drafted > 0


def test_a_text_longer_than_the_draft_model_can_read_is_decoded_plainly(tmp_path: Path) -> None:
    target = write_folder(tmp_path / "target")
    draft = write_folder(tmp_path / "draft", max_position_embeddings=16)
    config = {"model": str(draft), "num_speculative_tokens": 3, "draft_min_token_prob": 0.0}
    llm = LLM(str(target), max_model_len=96, speculative_config=config)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    [result] = llm.generate([[3, 4, 5]], params)
    assert len(result.outputs[0].token_ids) == 40


def tokenizer(words: list[str]) -> Any:
    return SimpleNamespace(get_vocab=lambda: {word: index for index, word in enumerate(words)})


def test_vocabularies_are_compared_by_content() -> None:
    check_vocabularies("big", tokenizer(["a", "b", "c"]), "small", tokenizer(["a", "b", "c", "<pad>"]))
    with pytest.raises(LoadError, match="1 mean something else \\(1 is 'b' here and 'x' there\\)"):
        check_vocabularies("big", tokenizer(["a", "b"]), "small", tokenizer(["a", "x"]))
    with pytest.raises(LoadError, match="of 0 shared"):
        check_vocabularies("big", tokenizer([]), "small", tokenizer(["a", "x"]))


@pytest.mark.parametrize(
    ("model", "kind", "sentence"),
    [
        ("target:x", ConfigError, "give a number of layers"),
        ("target:", ConfigError, "give a number of layers"),
        ("target:9", LoadError, "of the target's 2 layers"),
        ("target:0", LoadError, "of the target's 2 layers"),
        ("", LoadError, "Nothing for method 'draft_model' comes with foredraft"),
    ],
)
def test_layers_that_are_not_there_are_refused(model: str, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        DraftModelDrafter(model).bind(random_target())


def test_a_draft_model_without_a_common_tokenizer_is_refused(tmp_path: Path) -> None:
    draft = write_folder(tmp_path / "draft")
    with pytest.raises(LoadError, match="has no tokenizer"):
        DraftModelDrafter(str(draft)).bind(random_target())
    named = cast(Target, SimpleNamespace(**{**vars(random_target()), "tokenizer": tokenizer(["z", "y"])}))
    with pytest.raises(LoadError, match="mean something else"):
        DraftModelDrafter(str(draft)).bind(named)


def test_values_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="give a number from 0 to 1"):
        DraftModelDrafter("target:1", draft_min_token_prob=1.5)
