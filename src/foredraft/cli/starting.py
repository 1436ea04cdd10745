"""Brings a model up for a command, with a progress bar for the default model and without other libraries' chatter."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from foredraft.cli.terminal import transient
from foredraft.target.load_cache import cache_root
from foredraft.types import SamplingParams

if TYPE_CHECKING:
    from foredraft.engine.llm import LLM
    from foredraft.target.default_model import Progress

__all__ = ["DEFAULT_MAX_TOKENS", "answer_params", "encode_prompt", "starting"]

DEFAULT_MAX_TOKENS = 512


@contextmanager
def starting(model: str, *, offline: bool) -> Iterator[None]:
    """Around everything that imports or loads: says what is going on, on a terminal, and nothing else."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fetch_if_default(model, offline=offline)
        first = not (cache_root() / "proofs").exists()  # nothing was decoded by the compiled kernels yet
        hint = ", which takes a minute the first time, while its kernels are compiled" if first else ""
        with transient(f"Loading {model}{hint} …"):
            yield


def fetch_if_default(model: str, *, offline: bool) -> None:
    """Download the default model on its first use, with a bar if somebody has to wait for it."""
    from foredraft.target.default_model import DEFAULT_MODEL_ALIAS, fetch_default_model

    if model != DEFAULT_MODEL_ALIAS:
        return
    with ExitStack() as stack:
        show: Progress | None = None

        def progress(done: int, total: int) -> None:
            nonlocal show
            show = show or stack.enter_context(download_bar(model))
            show(done, total)

        fetch_default_model(progress if sys.stderr.isatty() else None, offline=offline)


@contextmanager
def download_bar(name: str) -> Iterator[Progress]:
    """A bar on stderr, gone afterwards; its updates take (bytes done, bytes in all)."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("Fetching {task.description}"),
        BarColumn(complete_style="green", finished_style="green"),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def encode_prompt(llm: LLM, prompt: str, *, raw: bool, system: str | None) -> list[int]:
    """The prompt's token ids, by the model's chat template if it has one and `raw` doesn't say otherwise."""
    if raw or (system is None and not llm.tokenizer.chat_template):
        return list(llm.tokenizer.encode(prompt))
    opening = [] if system is None else [{"role": "system", "content": system}]
    return llm.encode_chat([*opening, {"role": "user", "content": prompt}])


def answer_params(llm: LLM, given: dict[str, object], prompt_length: int) -> SamplingParams:
    """The model's own defaults, overridden by the flags `given`; without --max-tokens, the default or what fits."""
    room = min(llm.target.max_model_len, llm.engine.kv_room - llm.engine.num_speculative_tokens) - prompt_length
    defaults = replace(llm.get_default_sampling_params(), max_tokens=max(1, min(DEFAULT_MAX_TOKENS, room)))
    return replace(defaults, **given)  # type: ignore[arg-type]
