"""Draft models without an embedding table, which look tokens up in their target's, and with a reduced output layer.

A small model's embedding and output layer are most of it: of three layers under a vocabulary of 49k, two thirds. What
is left fits into a package, and reads a quarter of the bytes for each draft token. The output layer has the rows of the
tokens that are drafted at all, as EAGLE-3's has (FR-Spec, Zhao et al. 2025, arXiv 2502.14856, does so for EAGLE-2).

config.json is the model's own, with the draft vocabulary's size as `vocab_size` and the target under `foredraft_draft`;
model.safetensors has the layers, the final norm, `lm_head.weight` [Vd, H], and `draft_ids` [Vd], the target's ids.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from foredraft.errors import LoadError
from foredraft.heads.files import HeadFiles
from foredraft.heads.fill import fill
from foredraft.heads.info import TargetFacts, check_target
from foredraft.heads.levels import from_levels, to_levels
from foredraft.heads.save import save_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["Borrower", "borrows", "read_borrower", "write_borrower"]

MARK = "foredraft_draft"
IDS = "draft_ids"


class Borrower(NamedTuple):
    """tensors: by the checkpoint's names, all but the embedding table; draft_ids [Vd] int64."""

    config: PreTrainedConfig
    tensors: dict[str, Tensor]
    draft_ids: Tensor


def borrows(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of such a model."""
    return MARK in config


def read_borrower(files: HeadFiles, target: TargetFacts) -> Borrower:
    """Raises LoadError for tensors that are missing, misshapen or not finite, and for another target's draft model."""
    from transformers import AutoConfig

    described = {key: value for key, value in files.config.items() if key not in (MARK, "model_type")}
    try:
        config = AutoConfig.for_model(files.config["model_type"], **described)
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{files.path} has a config.json that describes no model ({error}); train it again") from error
    check_target(files.path, TargetFacts.from_json(files.config[MARK]), target)
    stored = from_levels(files)
    network = fill(stored, lambda: _without_embedding(config), {name: name for name in stored.shapes if name != IDS})
    if IDS not in stored.shapes:
        raise LoadError(f"{files.path} lacks the tensor {IDS}; download it again")
    ids = stored.take([IDS])[IDS].long()
    if len(ids) != config.vocab_size or (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < _size(target, ids)):
        raise LoadError(
            f"{files.path} has {config.vocab_size} output rows and {len(ids)} draft ids, which must be as many and "
            "below the target's vocabulary size; download it again"
        )
    return Borrower(config, dict(network.state_dict()), ids)


def write_borrower(folder: Path, model: PreTrainedModel, draft_ids: Tensor, target: TargetFacts) -> None:
    """Write `model`, whose embedding table is the target's, as int8 without that table. Raises OSError."""
    network: Any = model
    config: Any = copy.deepcopy(model.config)
    config.vocab_size, config.tie_word_embeddings = len(draft_ids), False
    content = {**config.to_diff_dict(), MARK: target.to_json()}
    content.pop("_name_or_path", None)
    names = _without_embedding(config).state_dict().keys() - {"lm_head.weight"}
    state = model.state_dict()
    matrices = {name: state[name].float() for name in sorted(names)}
    matrices["lm_head.weight"] = network.get_output_embeddings().weight[draft_ids]
    save_checkpoint(folder, content, {**to_levels(matrices), IDS: draft_ids})


def _without_embedding(config: PreTrainedConfig) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM
    with torch.device("meta"):
        network: PreTrainedModel = factory.from_config(config)
    network.set_input_embeddings(nn.Identity())
    return network


def _size(target: TargetFacts, ids: Tensor) -> int:
    return target.vocab_size if target.vocab_size is not None else int(ids.max()) + 1
