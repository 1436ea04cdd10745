"""The `tree` of a drafting head's configuration: how far a draft may spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from foredraft.errors import ConfigError

__all__ = ["MOST_NODES", "TreeShape", "shape_of"]

MOST_DEPTH, MOST_WIDTH, MOST_NODES = 32, 64, 512


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Bounds of a draft: levels, guesses after each node (and nodes that are read a level), nodes in all.

    Raises ConfigError for a bound out of range.
    """

    depth: int = 6
    top_k: int = 8
    nodes: int = 60

    def __post_init__(self) -> None:
        for name, most in (("depth", MOST_DEPTH), ("top_k", MOST_WIDTH), ("nodes", MOST_NODES)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ConfigError(f"The tree's {name} is {value!r}; give a number from 1 to {most}.")

    @classmethod
    def parse(cls, value: Mapping[str, int] | TreeShape | None) -> TreeShape | None:
        """From a config's `tree`; None is a chain. Raises ConfigError for anything but an object of known bounds."""
        if value is None or isinstance(value, TreeShape):
            return value
        known = [bound.name for bound in fields(cls)]
        if not isinstance(value, Mapping) or set(value) - set(known):
            raise ConfigError(f'tree is {value!r}; give {{"depth": 6, "top_k": 8, "nodes": 60}}, or leave it out.')
        return cls(**value)


def shape_of(
    tree: Mapping[str, int] | TreeShape | None, length: int | None, usual_length: int
) -> tuple[TreeShape, int]:
    """The bounds of a draft, and `num_speculative_tokens`: those of a chain of `length` tokens without a `tree`."""
    shape = TreeShape.parse(tree)
    if shape is not None:
        return shape, shape.nodes if length is None else length
    length = usual_length if length is None else length
    longest = max(1, min(length, MOST_DEPTH))
    return TreeShape(longest, 1, longest), length
