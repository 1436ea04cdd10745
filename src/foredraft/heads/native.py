"""foredraft's own format: every field of the shape in config.json, tensors under the names of the module.

Weights are stored in a floating-point type or as int8 (`levels`), which is what keeps the heads inside the package
small.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from torch import Tensor

from foredraft.errors import LoadError
from foredraft.heads.config import Config
from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.heads.files import HeadFiles
from foredraft.heads.fill import fill
from foredraft.heads.info import Dialect, HeadInfo, TargetFacts
from foredraft.heads.levels import from_levels, to_levels
from foredraft.heads.medusa import MedusaHeads, MedusaShape
from foredraft.heads.taps import check_boundaries

__all__ = ["native_config", "native_tensors", "read_native"]

KINDS = ("eagle", "medusa")


def native_config(head: EagleHead | MedusaHeads, target: TargetFacts) -> dict[str, Any]:
    """What config.json holds."""
    kind = "eagle" if isinstance(head, EagleHead) else "medusa"
    return {"foredraft_head": kind, "shape": asdict(head.shape), "foredraft": {"target": target.to_json()}}


def native_tensors(head: EagleHead | MedusaHeads, *, int8: bool) -> dict[str, Tensor]:
    """What model.safetensors holds. `int8` stores matrices as levels and scales, vectors as they are."""
    state: dict[str, Tensor] = head.state_dict()
    tensors = to_levels(state) if int8 else dict(state)
    if head.draft_ids is not None:
        tensors["draft_ids"] = head.draft_ids
    return tensors


def read_native(files: HeadFiles, target: TargetFacts) -> tuple[EagleHead | MedusaHeads, HeadInfo]:
    """Raises LoadError, naming what is missing or wrong. int8 weights come back as float32."""
    whole = Config(files.path, files.config)
    kind = whole.text("foredraft_head", "")
    if kind not in KINDS:
        raise LoadError(
            f"{files.path} is a foredraft head of the kind {kind!r}, which this version doesn't know; upgrade"
        )
    described = whole.part("shape").found
    plain = {name: value for name, value in described.items() if name != "aux_layers"}
    files = from_levels(files)
    ids = files.take(["draft_ids"])["draft_ids"] if "draft_ids" in files.shapes else None
    names = {name: name for name in files.shapes if name != "draft_ids"}
    head: EagleHead | MedusaHeads
    try:
        if kind == "eagle":
            taps = tuple(int(layer) for layer in described["aux_layers"])
            shape = EagleShape(**plain, aux_layers=taps)
            if taps != (-1,):
                check_boundaries(files.path, taps, target.layers)
            head = fill(files, lambda: EagleHead(shape, ids), names)
        else:
            medusa = MedusaShape(**plain)
            head = fill(files, lambda: MedusaHeads(medusa, ids), names)
    except (KeyError, TypeError, ValueError) as error:
        known = ", ".join(field.name for field in fields(EagleShape if kind == "eagle" else MedusaShape))
        raise LoadError(
            f"{files.path} has a shape in its config.json that doesn't describe a head ({error}); its keys are {known}"
        ) from error
    facts = TargetFacts.from_json(whole.part("foredraft").found.get("target"))
    hidden = head.shape.target_hidden if isinstance(head, EagleHead) else head.shape.hidden
    facts = TargetFacts(facts.name, facts.layers, hidden, head.shape.vocab_size, facts.tokenizer)
    method = "medusa" if isinstance(head, MedusaHeads) else "eagle" if head.shape.generation == 1 else "eagle3"
    return head, HeadInfo(files.path, Dialect.FOREDRAFT, method, facts)  # type: ignore[arg-type]
