"""The contract suite for drafters, ours and anybody's.

    from foredraft.testing import check_drafter

    def test_my_drafter():
        check_drafter(MyDrafter)

`check_drafter` raises AssertionError with a sentence that says what is wrong. `CONTRACT` lists its checks one by one,
for reports with a line each; the other names are what they are made of.
"""

from foredraft.testing.capricious import CapriciousController
from foredraft.testing.contract import CONTRACT, Trial, check_drafter
from foredraft.testing.random_target import random_target
from foredraft.testing.workload import (
    Answer,
    Ask,
    decode,
    decode_plainly,
    difference,
    mixed_asks,
    with_predictions,
)

__all__ = [
    "CONTRACT",
    "Answer",
    "Ask",
    "CapriciousController",
    "Trial",
    "check_drafter",
    "decode",
    "decode_plainly",
    "difference",
    "mixed_asks",
    "random_target",
    "with_predictions",
]
