"""Has transformers load a checked folder, quietly, and turns whatever goes wrong in it into one sentence.

Weights stay memory-mapped where the wanted dtype is the stored one: loading is quick and nothing is held twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from foredraft.errors import CapacityError, ForedraftError, LoadError
from foredraft.target.config_cache import recall_config, remember_config
from foredraft.target.load_folder import Checkpoint

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["explained", "load_config", "load_generation_defaults", "load_model", "load_tokenizer_files"]

OUT_OF_MEMORY = ("allocate memory", "out of memory")

logger = logging.getLogger(__name__)


def load_model(
    checkpoint: Checkpoint, dtype: torch.dtype, attn_implementation: str, trust_remote_code: bool
) -> PreTrainedModel:
    """The model in eval mode without gradients, every weight of it from the checkpoint."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with _quiet():
        model, found = auto.from_pretrained(
            checkpoint.folder,
            dtype=dtype,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    missing = sorted(found["missing_keys"])
    if missing:  # transformers has filled them with random numbers
        raise LoadError(
            f"{checkpoint.folder} lacks {len(missing)} of the model's weights, like {missing[0]!r}; download it again"
        )
    if found["unexpected_keys"]:
        extra = sorted(found["unexpected_keys"])
        logger.info("%s holds %d weights the model has no use for, such as %s", checkpoint.folder, len(extra), extra[0])
    network: PreTrainedModel = model.eval().requires_grad_(False)
    return network


def load_config(folder: Path, trust_remote_code: bool) -> PreTrainedConfig:
    """The folder's configuration, as transformers reads it."""
    if not trust_remote_code and (known := recall_config(folder)) is not None:
        return known
    from transformers import AutoConfig

    with _quiet():
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    if not trust_remote_code:
        remember_config(folder, config)
    return config


def load_tokenizer_files(folder: Path, *, as_written: bool, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The folder's tokenizer. `as_written` takes tokenizer.json to the letter, where AutoTokenizer may choose the
    architecture's own class, which splits text in its own way."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    loader: Any = PreTrainedTokenizerFast if as_written else AutoTokenizer
    options = {} if as_written else {"trust_remote_code": trust_remote_code}
    try:
        with _quiet():
            tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:  # from a missing file to a missing package
        raise LoadError(
            f"{folder} has no tokenizer that can be loaded ({_reason(error)}); add its tokenizer.json"
        ) from error
    return tokenizer


def load_generation_defaults(folder: Path) -> GenerationConfig | None:
    """The folder's generation_config.json, if it has one."""
    from transformers import GenerationConfig

    if not (folder / "generation_config.json").is_file():
        return None
    return GenerationConfig.from_pretrained(folder, local_files_only=True)


@contextmanager
def explained(model: str) -> Iterator[None]:
    """Turn any other library's error inside the block into a LoadError, or a CapacityError when memory ran out."""
    try:
        yield
    except ForedraftError:
        raise
    except Exception as error:
        reason = _reason(error)
        if isinstance(error, MemoryError) or any(sign in reason for sign in OUT_OF_MEMORY):
            raise CapacityError(f"{model} doesn't fit into memory ({reason}); use a smaller model or dtype") from error
        raise LoadError(
            f"{model} can't be loaded ({reason}); check that its files are whole and transformers is up to date"
        ) from error


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")[:300] or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars and reports; what matters in them is checked here."""
    from transformers.utils import logging as transformers_logging

    console: Any = transformers_logging
    verbosity, bars = console.get_verbosity(), console.is_progress_bar_enabled()
    console.set_verbosity_error()
    console.disable_progress_bar()
    try:
        yield
    finally:
        console.set_verbosity(verbosity)
        if bars:
            console.enable_progress_bar()
