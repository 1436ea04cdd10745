"""Fetches a model from the Hugging Face hub into the hub's own cache, or finds it there when there is no network.

HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE mean what they mean to every other program. The
repository's file list is read first, so nothing is downloaded from one that can't be run, and pickled weights never
are.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from foredraft.errors import LoadError
from foredraft.target.load_folder import refuse_pickles

__all__ = ["fetch_from_hub", "is_hub_id"]

ANSWER_WITHIN = 10.0  # seconds for the hub's answer about a repository
SMALL_FILES = ["*.json", "*.model", "*.txt", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]  # other formats of the same weights
HUB_ID = re.compile(r"(?=.{1,96}$)[\w.-]+(/[\w.-]+)?", re.ASCII)

logger = logging.getLogger(__name__)


def is_hub_id(model: str) -> bool:
    """Whether a string can name a hub repository: "name" or "owner/name"."""
    return (
        HUB_ID.fullmatch(model) is not None
        and not model.startswith((".", "-"))
        and ".." not in model
        and "--" not in model
    )


def fetch_from_hub(
    model: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    offline: bool = False,
    weights: bool = True,
) -> Path:
    """Folder of a repository's snapshot (small files only, without `weights`); its .gguf file if it has only that."""
    from huggingface_hub import constants

    wanted = SMALL_FILES + (["*.safetensors"] if weights else []) + (["*.py"] if trust_remote_code else [])
    if offline or constants.HF_HUB_OFFLINE:
        return _cached(model, revision, wanted, "downloads are switched off", None)
    try:
        names = _file_names(model, revision)
    except LoadError:
        raise
    except (
        Exception
    ) as error:  # whichever HTTP library the hub's client uses; without an answer only the cache can help
        return _cached(model, revision, wanted, f"the hub can't be reached ({type(error).__name__})", error)
    usable = (".safetensors",) if weights else ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
    if not any(name.endswith(usable) for name in names):
        refuse_pickles(model, names)
        wanted = [_only_gguf(model, names)]
    folder = _download(model, revision, wanted)
    return folder / wanted[0] if wanted[0].endswith(".gguf") else folder


def _file_names(model: str, revision: str | None) -> list[str]:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().model_info(model, revision=revision, timeout=ANSWER_WITHIN)
    except GatedRepoError as error:
        raise LoadError(f"{model} is gated; accept its licence on the hub and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise LoadError(f"{model} has no revision {revision!r}; pass an existing branch, tag or commit") from error
    except RepositoryNotFoundError as error:
        raise LoadError(
            f"{model!r} is no file or folder here and no model on the hub; check its name, or set HF_TOKEN if private"
        ) from error
    except HFValidationError as error:
        raise LoadError(
            f"{model!r} is no file or folder here and can't be a hub id either; check its spelling"
        ) from error
    return [sibling.rfilename for sibling in info.siblings or [] if "/" not in sibling.rfilename]


def _only_gguf(model: str, names: list[str]) -> str:
    files = [name for name in names if name.endswith(".gguf")]
    if len(files) == 1:
        return files[0]
    if not files:
        raise LoadError(
            f"{model} has no weights on the hub that foredraft reads (safetensors or .gguf); pass another repository"
        )
    raise LoadError(
        f"{model} has {len(files)} .gguf files ({', '.join(files[:4])}, ...); `hf download` one and pass its path"
    )


def _download(model: str, revision: str | None, wanted: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=wanted, ignore_patterns=UNWANTED))
    except Exception as error:  # the client raises its own kinds, its HTTP library's and OSError
        raise LoadError(
            f"{model} can't be downloaded ({_first_line(error)}); start again, what is already here is kept"
        ) from error


def _cached(model: str, revision: str | None, wanted: list[str], reason: str, cause: Exception | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(
                model, revision=revision, allow_patterns=wanted, ignore_patterns=UNWANTED, local_files_only=True
            )
        )
    except Exception as error:
        raise LoadError(
            f"{model!r} is no file or folder here, nor in the hub's cache, and {reason}; connect or pass a local path"
        ) from (cause or error)
    logger.info("%s, so %s is taken from the hub's cache", reason, model)
    return folder


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
