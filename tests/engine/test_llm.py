"""What the Python API refuses, in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foredraft.engine.llm import LLM
from foredraft.engine.speculation import parse_speculation
from foredraft.errors import ConfigError, RequestError
from foredraft.types import SamplingParams


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (None, "prompts is None"),
        (["hi", 3], r"prompts is \['hi', 3\]"),
        ([1.5], r"prompts is \[1.5\]"),
        ("caf\udce9", "half a surrogate pair"),
    ],
)
def test_what_is_no_prompt(tiny_checkpoint: Path, prompts: Any, said: str) -> None:
    llm = LLM(str(tiny_checkpoint), dtype="float64", speculative_config=None)
    with pytest.raises(RequestError, match=said):
        llm.generate(prompts)
    assert llm.engine.idle


@pytest.mark.parametrize("config", ["ngram", [1]])
def test_a_speculative_config_that_is_no_mapping(config: Any) -> None:
    with pytest.raises(ConfigError, match="give a mapping such as"):
        parse_speculation(config)


@pytest.mark.parametrize("values", [{"stop": 5}, {"logit_bias": {1: "x"}}, {"stop": ["a" * 2000]}])
def test_parameters_of_other_types(values: Any) -> None:
    with pytest.raises(ConfigError):
        SamplingParams(**values)
