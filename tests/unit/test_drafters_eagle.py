"""EAGLE's own cache, its trees and its limits: what it drafts is what the head says, whatever came before."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Collection
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_heads import copied_head, eagle_head, head_folder, shallow_target
from torch import Tensor, nn

from foredraft.drafters.eagle import Eagle3Drafter, EagleDrafter
from foredraft.drafters.guesses import Ranking
from foredraft.drafters.methods import build_drafter
from foredraft.drafters.self_test import target_text
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, LoadError
from foredraft.heads.chains import ChainAttention
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache
from foredraft.target.target import Target
from foredraft.testing import Ask, CapriciousController, decode, random_target
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence

PLAIN = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
TREE = {"depth": 4, "top_k": 3, "nodes": 12}
PROMPT = [3 + (7 * token * token + token) % 90 for token in range(24)]


def drafter_of(generation: int, **fields: Any) -> EagleDrafter:
    kind = EagleDrafter if generation == 1 else Eagle3Drafter
    given = {"head": eagle_head(generation), "draft_min_token_prob": 0.0, **fields}
    return kind("", **given)


def finish(engine: Engine) -> None:
    while not engine.idle:
        engine.step()


def features_of(target: Target, tokens: Collection[int], taps: tuple[int, ...]) -> Tensor:
    """[T, taps, H] what the target computes for a text, read at once into an empty cache."""
    cache = KVCache(target.decoder.cache_shape, 1, target.decoder.cache_dtype)
    cache.reserve(len(tokens))
    flat = FlatPass(torch.tensor(tokens), torch.arange(len(tokens)), (Segment(0, 0, 0, len(tokens)),))
    hidden = target.decoder.forward(flat, cache, taps)
    assert hidden.taps is not None
    return hidden.taps


class Recomputed:
    """Watches a drafter: after each draft its states and its cache must be those of a head that reads the whole text
    again, without any cache.
    """

    def __init__(self, drafter: EagleDrafter, target: Target) -> None:
        self.drafter, self.target, self.compared = drafter, target, 0
        self.propose = drafter.propose
        drafter.propose = self.checked  # type: ignore[method-assign]

    def checked(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        tree = self.propose(batch, budget)
        for sequence, nodes in zip(batch, budget, strict=True):
            state = self.drafter._cache.state(sequence)
            if nodes and state is not None:
                self.compare(sequence, state)
        return tree

    def compare(self, sequence: Sequence, state: Tensor) -> None:
        head, text = self.drafter._opened.head, torch.tensor(sequence.tokens)
        layers = [Noting(), Noting()]
        feature = head.fuse(features_of(self.target, sequence.tokens[:-1], head.shape.aux_layers))
        attend = ChainAttention()

        def noted(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            layers[layer].key, layers[layer].value = key, value
            return attend(layer, query, key, value)

        embedding = head.embed(text[1:], self.target.decoder.embed)
        states = head.step(embedding, feature, torch.arange(len(text) - 1), noted)
        torch.testing.assert_close(state, states[-1])
        cache = self.drafter._cache
        slot, rows = cache.slot(sequence), len(text) - 1
        assert len(cache.kv.tokens(slot)) == rows
        for layer in range(head.shape.layers):
            torch.testing.assert_close(cache.kv.keys[layer][slot, :, :rows].transpose(0, 1), layers[layer].key)
            torch.testing.assert_close(cache.kv.values[layer][slot, :, :rows].transpose(0, 1), layers[layer].value)
        self.compared += 1


class Noting:
    key: Tensor
    value: Tensor


@pytest.mark.parametrize("generation", [1, 3])
@pytest.mark.parametrize("tree", [None, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("kv_room", [None, 68], ids=["roomy", "preempted"])
def test_the_cache_is_what_a_head_computes_that_reads_everything_again(
    generation: int, tree: dict[str, int] | None, kv_room: int | None
) -> None:
    """After rejections, plain steps, preemptions and aborts, with several sequences at once and prompts in chunks."""
    target = random_target()
    drafter = drafter_of(generation, tree=tree, head=eagle_head(generation, layers=2))
    engine = Engine(
        target,
        drafter,
        num_speculative_tokens=6,
        controller=CapriciousController(),
        kv_room=kv_room,
        max_batched_tokens=11,
    )
    watched = Recomputed(drafter, target)
    asks = [
        Ask(str(index), tuple(PROMPT[index : index + length]), replace(PLAIN, temperature=index % 2, seed=index))
        for index, length in enumerate((9, 5, 13, 4, 17))
    ]
    decode(engine, asks, aborts={6: "2"})
    assert watched.compared > 12
    assert (engine.scheduler.preemptions > 0) == (kv_room is not None)


def test_rows_of_another_sequence_that_began_alike_are_taken_over() -> None:
    """As the target takes over its prefix, for which it then computes no features."""
    target = random_target()
    drafter = drafter_of(3)
    engine = Engine(target, drafter, num_speculative_tokens=3)
    watched = Recomputed(drafter, target)
    first = engine.add(PROMPT, PLAIN)
    finish(engine)
    told = watched.compared
    engine.add([*PROMPT, *first.choices[0].output.token_ids, 5, 6], PLAIN)
    engine.add([*PROMPT[:12], 7, 8], PLAIN)
    finish(engine)
    assert engine.target.cache.slots == 3
    assert watched.compared > told + 5


def test_no_more_is_kept_than_the_target_keeps() -> None:
    """Of texts that are over: the room for keys and values bounds the head's, too."""
    drafter = drafter_of(3)
    engine = Engine(random_target(), drafter, num_speculative_tokens=3, kv_room=60)
    kv = drafter._cache.kv
    for start in range(8):
        engine.add(PROMPT[start:], PLAIN)
        finish(engine)
        assert 20 < sum(len(kv.tokens(slot)) for slot in range(kv.slots)) <= 60


def test_rows_that_cannot_be_had_are_done_without() -> None:
    """The target knows the text already, and the drafter has not seen it: it drafts with what comes."""
    target = random_target()
    finish(started := Engine(target))
    started.add(PROMPT, PLAIN)
    finish(started)
    drafter = drafter_of(1)
    engine = Engine(target, drafter, num_speculative_tokens=3)
    request = engine.add([*PROMPT, 5], PLAIN)
    finish(engine)
    assert request.choices[0].output.speculative_decoding.drafted > 20


@pytest.mark.parametrize(("generation", "length", "least"), [(1, 5, 4.0), (3, 1, 1.8)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_head_that_knows_the_target_is_nearly_always_right(
    generation: int, length: int, least: float, temperature: float
) -> None:
    """It has the target's own layer, and lacks only the first token of the text."""
    target = shallow_target()
    drafter = drafter_of(generation, head=copied_head(generation), num_speculative_tokens=length)
    engine = Engine(target, drafter, num_speculative_tokens=length)
    params = SamplingParams(temperature=temperature, max_tokens=60, ignore_eos=True, seed=4)
    requests = [engine.add([*PROMPT[start:], *PROMPT], params) for start in range(4)]
    finish(engine)
    lengths = [request.choices[0].output.speculative_decoding.acceptance_length for request in requests]
    assert sum(lengths) / len(lengths) > least


def test_known_noise_says_more_than_probability() -> None:
    """Why guesses under noise are ranked by their perturbed score."""

    def accepted(ranking: Ranking) -> float:
        drafter = drafter_of(1, head=copied_head(1, wear=0.2), tree={"depth": 4, "top_k": 3, "nodes": 16})
        drafter._ranking = ranking  # type: ignore[misc]
        engine = Engine(shallow_target(), drafter, num_speculative_tokens=16)
        params = [SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True, seed=seed) for seed in range(3)]
        requests = [engine.add(PROMPT, own) for own in params]
        finish(engine)
        return sum(request.choices[0].output.speculative_decoding.acceptance_length for request in requests) / 3

    assert accepted(Ranking.PERTURBED) > accepted(Ranking.MIXED) > accepted(Ranking.PROBABILITY)


def propose_once(drafter: EagleDrafter, target: Target, budget: int, params: SamplingParams = PLAIN) -> TokenTree:
    """The first draft after `PROMPT`."""
    drafter.bind(target)
    sequence = Sequence(0, params, list(PROMPT), len(PROMPT), seed=1)
    drafter.begin(sequence)
    features = features_of(target, PROMPT[:-1], drafter.wants.layers)
    drafter._cache.add(sequence, 0, features, 0, len(features))
    return drafter.propose([sequence], [budget])


def test_a_slot_is_free_again_even_if_its_last_rows_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, target = drafter_of(3), random_target()
    drafter.bind(target)
    sequence = Sequence(0, PLAIN, list(PROMPT), len(PROMPT), seed=1)
    drafter.begin(sequence)

    def full(work: object) -> None:
        raise MemoryError

    monkeypatch.setattr(drafter._cache, "_read", full)
    with pytest.raises(MemoryError):
        drafter.end(sequence)
    assert drafter._cache.kv.free_slots == target.cache.slots


@pytest.mark.parametrize("generation", [1, 3])
def test_a_tree_contains_the_chain_with_the_same_scores(generation: int) -> None:
    """Nodes see their ancestors and no other draft, so a path is worth the same among others as alone."""
    target = random_target()
    chain = propose_once(drafter_of(generation, num_speculative_tokens=4), target, 4)
    wide = {"depth": 4, "top_k": 3, "nodes": 200}
    tree = propose_once(drafter_of(generation, tree=wide), target, 200)
    assert chain.scores is not None
    assert tree.scores is not None
    node, children = -1, tree.parents[0].tolist()
    for token, score in zip(chain.tokens[0].tolist(), chain.scores[0].tolist(), strict=True):
        [node] = [
            index for index, parent in enumerate(children) if parent == node and tree.tokens[0, index].item() == token
        ]
        assert tree.scores[0, node].item() == pytest.approx(score, rel=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_keeps_to_its_bounds(temperature: float) -> None:
    target = random_target()
    params = SamplingParams(temperature=temperature, max_tokens=20, ignore_eos=True, seed=1)
    full = propose_once(drafter_of(1, tree={"depth": 3, "top_k": 4, "nodes": 18}), target, 50, params)
    assert full.sizes == [18]
    assert int(full.depths.max()) <= 3
    children = [full.parents[0].tolist().count(parent) for parent in range(-1, 18)]
    assert max(children) <= 4
    for budget in (1, 5, 11):
        less = propose_once(drafter_of(1, tree={"depth": 3, "top_k": 4, "nodes": 18}), target, budget, params)
        assert less.sizes == [budget]
        assert less.scores is not None
        assert full.scores is not None
        assert less.scores[0].tolist() == full.scores[0, :budget].tolist(), "a smaller budget keeps the best nodes"


def test_unlikely_nodes_are_not_drafted() -> None:
    sizes = [
        propose_once(drafter_of(1, tree=TREE, draft_min_token_prob=least), random_target(), 12).sizes[0]
        for least in (0.0, 0.02, 1.0)
    ]
    assert sizes[0] > sizes[1] > sizes[2] == 0


def test_features_of_plain_steps_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer without drafts must not hoard the target's states, and drafting can begin at any time."""
    monkeypatch.setattr("foredraft.drafters.eagle_cache.MOST_WAITING", 100)
    target = random_target(max_model_len=1024)
    drafter = drafter_of(1, head=eagle_head(1, max_positions=1024))
    engine = Engine(target, drafter, num_speculative_tokens=3)
    watched = Recomputed(drafter, target)
    engine.add(PROMPT, SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True, speculative=True))
    limits = engine._limit
    engine._limit = lambda sequence: 0 if len(sequence.tokens) < 310 else limits(sequence)  # type: ignore[method-assign]
    most = 0
    while not engine.idle:
        engine.step()
        most = max([most, *(held.rows_waiting for held in drafter._cache._held.values())])
    assert 50 < most <= 100
    assert watched.compared > 2


def test_beyond_the_heads_positions_texts_are_decoded_plainly(caplog: pytest.LogCaptureFixture) -> None:
    drafter = drafter_of(3, head=eagle_head(3, max_positions=40), num_speculative_tokens=4)
    engine = Engine(random_target(), drafter, num_speculative_tokens=4)
    requests = [engine.add(PROMPT, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)) for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        finish(engine)
    assert [len(request.choices[0].output.token_ids) for request in requests] == [60, 60]
    assert all(0 < request.choices[0].output.speculative_decoding.drafted < 100 for request in requests)
    warnings = [record.getMessage() for record in caplog.records if "positions" in record.getMessage()]
    assert len(warnings) == 1
    assert "40 positions" in warnings[0]


def test_linear_layers_can_be_swapped() -> None:
    """For faster ones of the same function; the drafts stay what they were."""
    swapped = []

    def swap(linear: nn.Linear) -> nn.Module:
        swapped.append(linear)
        return nn.Sequential(linear, nn.Identity())

    plain = propose_once(drafter_of(3), random_target(), 5)
    drafter = drafter_of(3, head=eagle_head(3), swap=swap)
    assert propose_once(drafter, random_target(), 5).tokens.tolist() == plain.tokens.tolist()
    assert len(swapped) == 9  # fc, four projections, three of the feed-forward part, the output layer


def test_a_self_test_reports_agreement(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        EagleDrafter("", head=copied_head(1), self_test=True).bind(shallow_target())
        EagleDrafter("", head=eagle_head(1), self_test=True).bind(shallow_target())
    good, bad = [record for record in caplog.records if "agrees" in record.getMessage()]
    assert good.levelno == logging.INFO
    assert bad.levelno == logging.WARNING


def test_the_self_tests_text_is_the_targets_greedy_answer() -> None:
    target = random_target()
    text = target_text(target, (0, -1), tokens=12)
    request = (engine := Engine(target)).add([1, 5, 7], SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    finish(engine)
    assert text.tokens.tolist() == [1, 5, 7, *request.choices[0].output.token_ids]
    torch.testing.assert_close(
        torch.stack([*text.taps.values()], 1), features_of(target, text.tokens.tolist(), (0, -1))
    )


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_checkpoint_says_which_method_runs_it(method: str) -> None:
    built = build_drafter({"model": head_folder(method), "tree": TREE})
    assert built is not None
    assert built.method == method
    assert built.num_speculative_tokens == 12
    built.drafter.bind(random_target())
    wrong = build_drafter({"model": head_folder(method), "method": "eagle" if method == "eagle3" else "eagle3"})
    assert wrong is not None
    with pytest.raises(LoadError, match=f"use '{method}'"):
        wrong.drafter.bind(random_target())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"target_hidden": 48}, "hidden size 48"),
        ({"vocab_size": 97, "draft_vocab_size": 97}, "vocabulary size 97"),
        ({"aux_layers": (0, 1, 2)}, "reads layer 2"),
        ({"hidden": 64, "output": "target"}, "output layer of its own"),
        ({"generation": 1, "aux_layers": (-1,)}, "which method 'eagle3' can't run"),
    ],
)
def test_a_head_of_another_target_is_refused(changes: dict[str, Any], sentence: str) -> None:
    head = eagle_head(**{"generation": 3, **changes})
    with pytest.raises(LoadError, match=sentence):
        Eagle3Drafter("", head=head).bind(random_target())


@pytest.mark.parametrize("drafter", [EagleDrafter(), Eagle3Drafter()])
def test_without_a_head_for_the_target_it_says_how_to_get_one(drafter: EagleDrafter) -> None:
    with pytest.raises(LoadError, match=r"Nothing for method .* train one with `foredraft train"):
        drafter.bind(random_target())


@pytest.mark.parametrize(
    "config",
    [
        {"model": "somewhere", "draft_min_token_prob": 1.5},
        {"model": "somewhere", "tree": {"depth": 0}},
        {"model": "somewhere", "tree": {"top_k": 1000}},
        {"model": "somewhere", "tree": {"width": 3}},
        {"model": "somewhere", "tree": {"nodes": "many"}},
        {"model": "somewhere", "tree": [4, 3]},
    ],
)
def test_values_that_make_no_sense_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give"):
        EagleDrafter(**config)
