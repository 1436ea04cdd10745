"""Where an EAGLE head normalises its states: flags on which dialects and their versions disagree."""

from __future__ import annotations

from typing import NamedTuple

from foredraft.errors import LoadError
from foredraft.heads.eagle_source import EagleSource
from foredraft.heads.info import Dialect, Doubt

__all__ = ["Norms", "read_norms"]

CONVENTION_KEY = "aux_layer_convention"  # only foredraft's own exports have it, and they mean what they say


class Norms(NamedTuple):
    """Where the head normalises; `doubts` is what the file leaves open, `notes` what was assumed."""

    before_residual: bool
    output: bool
    final: bool
    doubts: tuple[Doubt, ...] = ()
    notes: tuple[str, ...] = ()

    def overridden(self, *, output: bool | None, before_residual: bool | None) -> Norms:
        """The same with what the caller knows better, about which there is no doubt then."""
        known = {Doubt.NORM_OUTPUT: output, Doubt.NORM_BEFORE_RESIDUAL: before_residual}
        return self._replace(
            output=self.output if output is None else output,
            before_residual=self.before_residual if before_residual is None else before_residual,
            doubts=tuple(doubt for doubt in self.doubts if known.get(doubt) is None),
        )


def read_norms(source: EagleSource) -> Norms:
    """Raises LoadError if the final norm is missing that every EAGLE-3 head has."""
    present = "norm.weight" in source.shapes
    if source.generation == 1:
        return Norms(before_residual=False, output=False, final=present)
    if not present:
        raise LoadError(f"{source.path} lacks the tensor norm.weight; download it again")
    whole, config = source.whole, source.config
    notes: list[str] = []
    doubts: list[Doubt] = []
    stated = whole if whole.has("norm_before_residual") else config
    before_residual = stated.flag("norm_before_residual", False)
    if source.dialect is Dialect.SPECULATORS and not stated.has("norm_before_residual"):
        notes.append("norm_before_residual is missing: false is assumed, and readers differ on it")
        doubts.append(Doubt.NORM_BEFORE_RESIDUAL)
    stated = whole if whole.has("norm_output") else config
    output = stated.flag("norm_output", False)
    if source.dialect is Dialect.SPECFORGE and stated.has("norm_output") and not whole.has(CONVENTION_KEY):
        # until SpecForge PR #879 the key said whether the output layer sees a normalised state
        doubts.append(Doubt.NORM_OUTPUT if output else Doubt.FINAL_NORM)
        notes.append("norm_output has had two meanings in SpecForge: feeding back the normalised state is assumed")
    return Norms(before_residual, output, True, tuple(doubts), tuple(notes))
