"""Which layers of the target an EAGLE-3 head reads, as boundaries: k is the input of layer k.

The formats disagree by one. Top-level eagle_aux_hidden_state_layer_ids (vLLM, speculators) are boundaries; the nested
key of SpecForge, SGLang and ModelOpt, and target_layer_ids (DeepSpec), name the layers whose output is read, so layer k
is boundary k + 1. Off by one, most of the acceptance is gone and nothing else shows it.
"""

from __future__ import annotations

from foredraft.errors import LoadError
from foredraft.heads.config import Config
from foredraft.heads.info import Dialect

__all__ = ["check_boundaries", "default_boundaries", "tapped_boundaries"]

KEY = "eagle_aux_hidden_state_layer_ids"


def default_boundaries(layers: int) -> tuple[int, ...]:
    """What every reference taps unless told otherwise: low, middle and high, of a target with `layers` layers. Small
    targets give fewer than three."""
    return tuple(sorted({2, layers // 2, layers - 3} & set(range(1, layers)))) or (layers - 1,)


def tapped_boundaries(
    whole: Config,
    config: Config,
    dialect: Dialect,
    fc_width: int,
    target_hidden: int,
    target_layers: int | None,
    *,
    given: tuple[int, ...] | None = None,
) -> tuple[tuple[int, ...], bool]:
    """The boundaries in the order of concatenation, and whether they are known rather than stand-ins. Raises LoadError
    if they can't be the target's or fc can't take them."""
    if fc_width % target_hidden:
        raise LoadError(
            f"{whole.path} has an fc.weight {fc_width} wide, no multiple of the target's hidden size {target_hidden}; "
            "pass a head for this target"
        )
    taps = fc_width // target_hidden
    found = given
    if found is None:
        found = _written(whole, config)
    if found is None and target_layers is None:
        return tuple(range(taps)), False
    if found is None and target_layers is not None:
        found = default_boundaries(target_layers)
        found = found if len(found) == taps else (2, target_layers // 2, target_layers - 3)
    boundaries = found or ()
    if len(boundaries) != taps:
        raise LoadError(
            f"{whole.path} reads {len(boundaries)} layers, {list(boundaries)}, and has an fc.weight for {taps}; "
            f"correct {KEY} in its config.json"
        )
    check_boundaries(whole.path, boundaries, target_layers)
    return boundaries, True


def check_boundaries(path: str, boundaries: tuple[int, ...], target_layers: int | None) -> None:
    """Raise LoadError for boundaries that a target doesn't have. The one after the last layer isn't one: what readers
    find there is normalised or not, by implementation."""
    for boundary in boundaries:
        if boundary < 0 or (target_layers is not None and boundary >= target_layers):
            last = "" if target_layers is None else f" to {target_layers - 1}"
            raise LoadError(
                f"{path} reads the target's layers {list(boundaries)} (as inputs), where only 0{last} exist; correct "
                f"{KEY} in its config.json, or pass the head's own target"
            )


def _written(whole: Config, config: Config) -> tuple[int, ...] | None:
    for place in (whole, config):
        if (boundaries := place.whole_list(KEY)) is not None:
            return boundaries
    outputs = whole.part("eagle_config").whole_list(KEY)
    outputs = whole.whole_list("target_layer_ids") if outputs is None else outputs
    return None if outputs is None else tuple(layer + 1 for layer in outputs)
