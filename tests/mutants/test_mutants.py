"""Bugs that a speculative engine is prone to, made on purpose: each must be caught by a quick exactness check.

The check is the suite's in miniature: two adversaries with the right path hidden in their trees, greedy and sampled,
every kind of processing. It passes on the engine as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from drafters import ADVERSARIES, ComparedWithNew
from models import VOCAB, tiny_target

from foredraft import sampling
from foredraft.drafters import draft_model
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.engine import engine as engine_module
from foredraft.engine.engine import Engine
from foredraft.sampling import Rows
from foredraft.target.flat_pass import Segment
from foredraft.target.kv_cache import KVCache
from foredraft.target.target import Target
from foredraft.testing import Answer, Ask, CapriciousController, decode, decode_plainly, difference, mixed_asks
from foredraft.tree import TokenTree
from foredraft.types import Batch
from foredraft.verify import Verdict, verify


@cache
def reference(temperature: float) -> tuple[list[Ask], list[Answer]]:
    """Computed before any bug is let in."""
    asks = mixed_asks(VOCAB, temperature, max_tokens=14)
    return asks, decode_plainly(lambda: tiny_target(slots=1), asks)


def check_exactness() -> None:
    """Raises AssertionError, or whatever a broken engine stumbles over, unless speculation changes nothing."""
    for temperature in (0.0, 1.0):
        asks, plain = reference(temperature)
        answers = {
            (ask.name, index): choice.token_ids
            for ask, answer in zip(asks, plain, strict=True)
            for index, choice in enumerate(answer)
        }
        for name in ("Thicket", "Oracle"):
            engine = Engine(tiny_target(), ADVERSARIES[name](answers), num_speculative_tokens=8, max_batched_tokens=24)
            found = decode(engine, asks, after_step=engine.check_integrity)
            assert [difference(one, other) for one, other in zip(found, plain, strict=True)] == [None] * len(asks)


Mutation = Callable[[pytest.MonkeyPatch], None]


def position_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """Draft nodes stand one place too far."""
    right = Segment.depths

    def depths(segment: Segment) -> list[int]:
        return [depth + (row >= segment.chain) for row, depth in enumerate(right(segment))]

    patch.setattr(Segment, "depths", depths)


def mask_without_self(patch: pytest.MonkeyPatch) -> None:
    """Draft nodes see their ancestors but not themselves."""
    right = Segment.mask

    def mask(segment: Segment) -> torch.Tensor:
        seen = right(segment).clone()
        nodes = torch.arange(segment.chain, segment.rows)
        seen[nodes, nodes] = False
        return seen

    patch.setattr(Segment, "mask", mask)


def mask_of_a_chain(patch: pytest.MonkeyPatch) -> None:
    """Draft nodes see every earlier node, siblings included."""
    patch.setattr(Segment, "mask", lambda segment: torch.ones((segment.rows, segment.rows), dtype=torch.bool).tril())


def wrong_row_kept(patch: pytest.MonkeyPatch) -> None:
    """The cache keeps the first rows of a tree instead of the accepted ones."""
    right = KVCache.keep

    def keep(cache: KVCache, slot: int, start: int, entries: Sequence[int], tokens: Sequence[int]) -> None:
        right(cache, slot, start, list(range(len(entries))), tokens)

    patch.setattr(KVCache, "keep", keep)


def one_row_too_many_kept(patch: pytest.MonkeyPatch) -> None:
    """The bonus token counts as cached, though its keys and values were never computed."""
    right = Target.commit

    def commit(target: Target, batch: Batch, verdict: Verdict, flat: object) -> list[int]:
        rows = right(target, batch, verdict, flat)  # type: ignore[arg-type]
        for chunk, length in zip(
            (c for c in batch.chunks if c.sequence.pending == 0), verdict.lengths.tolist(), strict=False
        ):
            chunk.sequence.cached += length > 1
        return rows

    patch.setattr(Target, "commit", commit)


def noise_of_the_root(patch: pytest.MonkeyPatch) -> None:
    """Every node draws with the noise of the root's position."""
    right = sampling.keys_of

    def keys_of(parts: Sequence[Rows], device: torch.device) -> torch.Tensor:
        return torch.cat([right([part], device)[:1].expand(len(part.paths), 1) for part in parts])

    patch.setattr(sampling, "keys_of", keys_of)


def neighbours_like_the_first(patch: pytest.MonkeyPatch) -> None:
    """Sequences are picked for together although they asked for different filters."""
    right = sampling._treatment
    patch.setattr(sampling, "_treatment", lambda rows: right(rows)[:1])


def processors_of_the_root(patch: pytest.MonkeyPatch) -> None:
    """Penalties and minimum lengths don't see the drafts above a node."""
    right = sampling._unfiltered

    def unaware(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        return right(logits, replace(rows, paths=[()] * len(rows.paths)))

    patch.setattr(sampling, "_unfiltered", unaware)


def dropped_bonus(patch: pytest.MonkeyPatch) -> None:
    """When drafts are accepted, the token after them isn't emitted."""

    def without_bonus(tree: TokenTree, picks: torch.Tensor) -> Verdict:
        verdict = verify(tree, picks)
        return verdict._replace(lengths=torch.where(verdict.lengths > 1, verdict.lengths - 1, 1))

    patch.setattr(engine_module, "verify", without_bonus)


def accepted_without_ancestors(patch: pytest.MonkeyPatch) -> None:
    """The deepest node that matches its parent's pick is accepted, rejected ancestors and all."""

    def lenient(tree: TokenTree, picks: torch.Tensor) -> Verdict:
        parents = tree.parents.clamp(min=-1) + 1
        matched = (tree.tokens == picks.gather(1, parents)) & (tree.tokens >= 0) if tree.width else None
        if matched is None or not matched.any():
            return verify(tree, picks)
        on_matched_paths = torch.zeros_like(matched)
        for row, node in matched.nonzero().tolist():
            while node >= 0:
                on_matched_paths[row, node] = True
                node = int(tree.parents[row, node])
        hopeful = picks.clone().scatter(
            1, parents, torch.where(on_matched_paths, tree.tokens, picks.gather(1, parents))
        )
        return verify(tree, hopeful)

    patch.setattr(engine_module, "verify", lenient)


def leaked_slot(patch: pytest.MonkeyPatch) -> None:
    """A finished sequence keeps its slot."""
    patch.setattr(KVCache, "release", lambda cache, slot: None)


MUTATIONS: tuple[Mutation, ...] = (
    position_off_by_one,
    mask_without_self,
    mask_of_a_chain,
    wrong_row_kept,
    one_row_too_many_kept,
    noise_of_the_root,
    neighbours_like_the_first,
    processors_of_the_root,
    dropped_bonus,
    accepted_without_ancestors,
    leaked_slot,
)


def test_the_engine_as_it_is_passes() -> None:
    check_exactness()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_bug_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    for temperature in (0.0, 1.0):
        reference(temperature)
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        check_exactness()


def check_draft_cache() -> None:
    """A draft model that is often wrong, under a controller that throws parts of its drafts away.

    No draft may depend on what was cached for an earlier one.
    """
    asks, _ = reference(0.7)
    drafter = ComparedWithNew(lambda: DraftModelDrafter("target:2", draft_min_token_prob=0.0))
    engine = Engine(tiny_target(), drafter, num_speculative_tokens=5, controller=CapriciousController())
    decode(engine, asks[:3])


def test_a_draft_models_cache_is_never_stale() -> None:
    check_draft_cache()


def test_a_stale_draft_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected drafts stay in the draft model's cache."""
    reference(0.7)
    monkeypatch.setattr(draft_model, "common_prefix", lambda held, tokens, limit: min(len(held), len(tokens), limit))
    with pytest.raises(AssertionError, match="stale"):
        check_draft_cache()
