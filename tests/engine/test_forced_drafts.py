"""Forced tokens in front, forbidden drafts out, the rest below."""

from __future__ import annotations

import pytest
from byte_tokenizer import EOS, VOCAB, byte_tokenizer, encode
from models import scripted_target

from foredraft.engine.forced_drafts import with_forced
from foredraft.engine.structured import Grammars
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence, StructuredOutput

pytest.importorskip("llguidance")
PROMPT = encode("?")
A, B, C, D, X, Y = (encode(letter)[0] for letter in "efghxy")


def sequence(regex: str | None) -> Sequence:
    params = SamplingParams(structured=StructuredOutput("regex", regex) if regex else None)
    target = scripted_target(PROMPT, [], vocab_size=VOCAB, tokenizer=byte_tokenizer())
    constraint = Grammars(target).open(params, len(PROMPT))
    return Sequence(0, params, list(PROMPT), len(PROMPT), 0, constraint=constraint)


def test_what_the_drafter_adds_goes_on_below_what_is_forced() -> None:
    tree = TokenTree.from_nodes(
        [([X, A, B, C, Y], [-1, -1, 1, 2, 2]), ([X, A], [-1, 0])],
        [[0.3, 0.5, 0.4, 0.2, 0.1], [0.9, 0.8]],
    )
    batch = [sequence("ef(g|h)h*"), sequence(None)]
    merged = with_forced(tree, batch, [6, 6])
    merged.validate(2, VOCAB)
    assert merged.tokens.tolist() == [[A, B, C], [X, A, -1]], "x and y are forbidden; without a form nothing changes"
    assert merged.parents.tolist() == [[-1, 0, 1], [-1, 0, -1]]
    assert merged.scores is not None
    assert merged.scores.tolist() == [pytest.approx([1.0, 1.0, 0.5]), pytest.approx([0.9, 0.8, 0.0])]


def test_an_end_is_forced_where_nothing_else_may_follow() -> None:
    merged = with_forced(TokenTree.empty(1), [sequence("ef")], [9])
    assert merged.tokens.tolist() == [[A, B, EOS]]
    assert with_forced(TokenTree.empty(1), [sequence("ef")], [2]).tokens.tolist() == [[A, B]]
    assert with_forced(TokenTree.empty(1), [sequence("ef")], [0]).width == 0
    assert with_forced(TokenTree.empty(1), [sequence("e?f")], [9]).width == 0


def test_without_forms_or_scores_the_tree_keeps_its_kind() -> None:
    tree = TokenTree.chain([[A, C]])
    assert with_forced(tree, [sequence(None)], [9]) is tree
    merged = with_forced(tree, [sequence("e[gh]")], [9])
    assert merged.scores is None
    assert merged.tokens.tolist() == [[A, C]]
