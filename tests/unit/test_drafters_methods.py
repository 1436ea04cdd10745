"""speculative_config: which drafter it makes, and the sentence for one that makes none."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from foredraft.drafters import methods
from foredraft.drafters.base import BaseDrafter
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.drafters.methods import METHODS, build_drafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.recycling import RecyclingDrafter
from foredraft.drafters.suffix import SuffixDrafter
from foredraft.errors import ConfigError, LoadError
from foredraft.testing import random_target


@dataclass
class Foreign(BaseDrafter):
    """As another package would write it."""

    strength: int = 3


@dataclass
class Demanding(BaseDrafter):
    """Can't do without being told something."""

    corpus: str


class NoDataclass(BaseDrafter):
    """Has no fields to configure."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package with drafters, good and bad."""
    entries = [
        EntryPoint("foreign", f"{__name__}:Foreign", methods.ENTRY_POINTS),
        EntryPoint("demanding", f"{__name__}:Demanding", methods.ENTRY_POINTS),
        EntryPoint("plain_class", f"{__name__}:NoDataclass", methods.ENTRY_POINTS),
        EntryPoint("gone", "no_such_package:Drafter", methods.ENTRY_POINTS),
    ]
    monkeypatch.setattr(methods, "entry_points", lambda group: entries)


def refusal(config: dict[str, Any], kind: type[Exception] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        build_drafter(config)
    return str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_built_by_name(method: str) -> None:
    config = {"model": "target:1"} if method in ("draft_model", "eagle", "eagle3", "medusa") else {}
    built = build_drafter({"method": method, **config})
    assert built is not None
    assert built.method == method
    assert type(built.drafter) is METHODS[method]
    assert built.num_speculative_tokens == built.drafter.num_speculative_tokens >= 1  # type: ignore[attr-defined]


def test_fields_are_keys() -> None:
    built = build_drafter({"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 4})
    assert built is not None
    assert isinstance(built.drafter, NgramDrafter)
    assert built.num_speculative_tokens == 7
    assert built.drafter.prompt_lookup_max == 4


def test_off_drafts_nothing() -> None:
    assert build_drafter({"method": "off"}) is None


def test_the_method_is_told_by_the_model() -> None:
    built, default = build_drafter({"model": "target:1"}), build_drafter({})
    assert built is not None
    assert default is not None
    assert isinstance(built.drafter, DraftModelDrafter)
    assert isinstance(default.drafter, HybridDrafter)


def test_a_hybrid_is_made_of_configs() -> None:
    built = build_drafter(
        {"method": "hybrid", "drafters": [{"method": "recycling", "recycling_candidates": 4}, {"method": "suffix"}]}
    )
    assert built is not None
    assert isinstance(built.drafter, HybridDrafter)
    first, second = built.drafter.drafters
    assert isinstance(first, RecyclingDrafter)
    assert first.recycling_candidates == 4
    assert isinstance(second, SuffixDrafter)


@pytest.mark.usefixtures("installed")
def test_drafters_of_other_packages_are_configured_the_same_way() -> None:
    built = build_drafter({"method": "foreign", "strength": 5, "num_speculative_tokens": 4})
    assert built is not None
    assert type(built.drafter).__name__ == "Foreign"
    assert built.drafter.strength == 5  # type: ignore[attr-defined]
    assert built.num_speculative_tokens == 4
    assert "'weakness'; it knows num_speculative_tokens, strength" in refusal({"method": "foreign", "weakness": 1})
    assert "foreign" in refusal({"method": "nonsense"})


@pytest.mark.usefixtures("installed")
def test_what_cannot_be_imported_is_a_load_error() -> None:
    assert "no_such_package" in refusal({"method": "gone"}, LoadError)
    assert "decorate it with @dataclass" in refusal({"method": "plain_class"}, LoadError)


def test_an_unknown_method_names_the_known_ones() -> None:
    sentence = refusal({"method": "telepathy"})
    assert all(name in sentence for name in ("'telepathy'", "off", *METHODS))


def test_an_unknown_key_names_the_known_ones() -> None:
    sentence = refusal({"method": "ngram", "prompt_lookup_maximum": 3})
    assert all(name in sentence for name in ("'prompt_lookup_maximum'", "prompt_lookup_max,", "num_speculative_tokens"))


def test_a_key_of_another_method_is_explained() -> None:
    sentence = refusal({"method": "ngram", "suffix_decoding_max_tree_depth": 3})
    assert "it belongs to prediction, suffix" in sentence


@pytest.mark.parametrize("key", methods.MEANINGLESS)
def test_options_of_vllm_without_meaning_here_say_why(key: str) -> None:
    assert f"{key!r} is a vLLM option that this engine has no use for" in refusal({"method": "ngram", key: 1})


def test_a_missing_value_is_named(installed: None) -> None:
    assert "needs corpus" in refusal({"method": "demanding"})


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "medusa"])
def test_a_missing_head_is_named(method: str) -> None:
    """Heads and draft models ship for some targets, so that only the target tells."""
    built = build_drafter({"method": method})
    assert built is not None
    with pytest.raises(LoadError, match=r"(?i)model"):
        built.drafter.bind(random_target())


@pytest.mark.parametrize(
    ("key", "value"),
    [("prompt_lookup_max", "5"), ("prompt_lookup_max", True), ("prompt_lookup_max", 2.5), ("prompt_lookup_max", None)],
)
def test_values_of_the_wrong_type_are_refused(key: str, value: object) -> None:
    assert f"{key} is {value!r}; give a value of type int" in refusal({"method": "ngram", key: value})


@pytest.mark.parametrize("length", [0, -1, "4", 3.0, True, 100_000])
def test_lengths_out_of_range_are_refused(length: object) -> None:
    assert "num_speculative_tokens is" in refusal({"method": "ngram", "num_speculative_tokens": length})


@pytest.mark.parametrize("drafters", ["suffix", ["suffix"], 3])
def test_a_hybrid_of_anything_but_configs_is_refused(drafters: object) -> None:
    assert "give a list of configs" in refusal({"method": "hybrid", "drafters": drafters})


def test_the_store_is_no_key() -> None:
    assert "no key 'store'" in refusal({"method": "suffix", "store": None})
