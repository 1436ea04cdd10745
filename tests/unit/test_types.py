"""SamplingParams refuse what makes no sense, in a sentence with the value; Sequence and Chunk count."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from foredraft.errors import ConfigError
from foredraft.types import Batch, Chunk, SamplingParams, Sequence


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("temperature", math.nan, "temperature is nan"),
        ("temperature", -0.1, "temperature is -0.1"),
        ("temperature", "hot", "temperature is 'hot'"),
        ("top_p", 0.0, "top_p is 0"),
        ("top_p", 1.1, "top_p is 1.1"),
        ("top_k", -2, "top_k is -2"),
        ("top_k", 2.5, "top_k is 2.5; give a whole number"),
        ("min_p", math.nan, "min_p is nan"),
        ("n", 0, "n is 0"),
        ("n", 1.5, "n is 1.5; give a whole number"),
        ("n", None, "n is None"),
        ("max_tokens", 0, "max_tokens is 0"),
        ("max_tokens", 3.5, "max_tokens is 3.5; give a whole number"),
        ("min_tokens", 17, "min_tokens 17 is above max_tokens 16"),
        ("min_tokens", -1, "min_tokens is -1"),
        ("repetition_penalty", 0, "repetition_penalty is 0"),
        ("presence_penalty", 2.1, "presence_penalty is 2.1"),
        ("frequency_penalty", -math.inf, "frequency_penalty is -inf"),
        ("logprobs", -1, "logprobs is -1"),
        ("num_speculative_tokens", -1, "num_speculative_tokens is -1"),
        ("seed", 2**64, "seed is 18446744073709551616"),
        ("stop", ["a", ""], "stop has an empty string"),
        ("stop", ["a"] * 65, "stop has 65 strings; give at most 64"),
        ("stop", ["a", "b" * 1001], "stop has a string of 1001 characters; give at most 1000"),
        ("stop", ["a", 5], "stop has 5; give strings"),
        ("logit_bias", {5: 101.0}, "logit_bias of token 5 is 101.0"),
        ("logit_bias", {5: math.nan}, "logit_bias of token 5 is nan"),
    ],
)
def test_a_value_without_sense_is_refused_by_name(name: str, value: object, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert complaint in str(caught.value)
    assert str(caught.value).endswith(".")


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a" * 1000] * 64).stop[63] == "a" * 1000
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[4]).stop_token_ids == (4,)


def test_a_sequence_counts_its_tokens() -> None:
    sequence = Sequence(0, SamplingParams(max_tokens=5), [1, 2, 3, 7, 8], 3, 0)
    assert (sequence.output, sequence.output_length, sequence.remaining, sequence.pending) == ([7, 8], 2, 3, 5)
    sequence.cached = 4
    assert sequence.pending == 1
    assert Sequence(0, SamplingParams(max_tokens=None), [1], 1, 0).remaining is None


def test_only_a_chunk_that_reaches_the_root_decodes() -> None:
    sequence = Sequence(0, SamplingParams(), [1, 2, 3, 4], 4, 0, cached=1)
    assert Chunk(sequence, 3).decodes
    assert not Chunk(sequence, 2).decodes
    assert Batch((Chunk(sequence, 3), Chunk(sequence, 2))).decoding == [sequence]


def test_types_do_not_import_torch() -> None:
    code = "import sys, foredraft.types, foredraft.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
