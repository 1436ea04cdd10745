"""A decision explains itself: every reason has words, and the sentence has the numbers of both alternatives."""

from __future__ import annotations

import pytest

from foredraft.engine.decision import Decision, Reason

VERIFIED = (Reason.PAYS, Reason.EXPLORES)


def plain(reason: Reason) -> Decision:
    return Decision(0, 2.0, 5.0, 2.0, 5.0, reason, 7, 4.5)


def test_what_pays_is_compared_with_plain_decoding() -> None:
    decision = Decision(9, 6.42, 6.3, 2.0, 5.0, Reason.PAYS, 16, 5.8)
    assert decision.gain == pytest.approx(6.42 / 6.3 / (2 / 5))
    assert decision.tokens_per_cycle == pytest.approx(3.21)
    assert decision.sentence == (
        "Verifies 9 of 16 drafts, 6.42 tokens in 6.3 ms (1019 tokens/s); plain decoding gives 2 tokens in 5 ms "
        "(400 tokens/s). Expected gain: 2.55 times as fast."
    )


def test_exploring_is_no_promise() -> None:
    sentence = Decision(1, 1.0, 6.0, 1.0, 5.0, Reason.EXPLORES, 4, 5.5).sentence
    assert sentence.startswith("Tries 1 of 4 drafts, 1 token in 6 ms")
    assert "gain" not in sentence


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in VERIFIED])
def test_decoding_plainly_has_a_reason(reason: Reason) -> None:
    sentence = plain(reason).sentence
    assert sentence.startswith("Decodes plainly, 2 tokens in 5 ms (400 tokens/s): ")
    assert "{" not in sentence
    assert len({plain(other).sentence for other in Reason if other not in VERIFIED}) == len(Reason) - len(VERIFIED)


def test_every_reason_has_words_of_its_own() -> None:
    assert len({reason.words for reason in Reason}) == len(Reason)
