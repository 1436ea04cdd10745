"""The example of a third-party drafter: it passes the contract suite, registers by entry point, and is of some use."""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from written_text import write

from foredraft.drafters import methods
from foredraft.drafters.methods import build_drafter
from foredraft.testing import check_drafter

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_drafter"


@dataclass
class Installed:
    """What an installed package's entry point looks like."""

    name: str
    value: str

    def load(self) -> Any:
        module, _, attribute = self.value.partition(":")
        return getattr(importlib.import_module(module), attribute)


@pytest.fixture
def markov(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's drafter class, found the way an installed one is."""
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    [(name, value)] = project["entry-points"][methods.ENTRY_POINTS].items()
    entry = Installed(name, value)
    monkeypatch.setattr(methods, "entry_points", lambda group: [entry])
    return entry.load()


def test_it_passes_the_contract(markov: Any) -> None:
    check_drafter(markov)


def test_its_method_is_found_and_configured(markov: Any) -> None:
    built = build_drafter({"method": "markov", "num_speculative_tokens": 3, "least_probability": 0.5})
    assert built is not None
    assert isinstance(built.drafter, markov)
    assert built.num_speculative_tokens == built.drafter.num_speculative_tokens == 3


def test_it_joins_a_hybrid(markov: Any) -> None:
    built = build_drafter({"method": "hybrid", "drafters": [{"method": "ngram"}, {"method": "markov"}]})
    assert built is not None
    assert isinstance(built.drafter.drafters[1], markov)  # type: ignore[attr-defined]


def test_it_speeds_up_a_refrain(markov: Any) -> None:
    refrain = [5, 6, 7, 8, 9]
    assert len(write(markov(), [1], refrain * 8)) < 30
