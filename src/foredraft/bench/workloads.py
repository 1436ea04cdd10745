"""What is decoded: the package's own prompts, choosing among prompts, and their encoding for a model.

The own workloads are files in the plain JSONL shape, written for this package, with no prompt in them twice: chat (open
questions), edit (a text and a change to it; the text is the prediction), quote (answers that repeat parts of a given
text), json (records extracted under a few recurring schemas) and creative (stories and poems, the hardest to draft
for).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from foredraft.bench.datasets import BenchPrompt, read_dataset
from foredraft.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from foredraft.target.target import Target

__all__ = ["WORKLOADS", "EncodedPrompt", "choose", "encode", "own_prompts"]

WORKLOADS = ("chat", "edit", "quote", "json", "creative")


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as token ids; `source` says where it came from, `workload` which cell it belongs to.

    `seed` is that of its request, so that it is sampled alike by every method and at every concurrency.
    """

    tokens: tuple[int, ...]
    workload: str
    source: str
    prediction: tuple[int, ...] = ()
    seed: int = 0


def own_prompts(names: Iterable[str] = WORKLOADS) -> list[BenchPrompt]:
    """The package's prompts of the named workloads. Raises ConfigError, listing the known names, for any other."""
    prompts = []
    for name in names:
        if name not in WORKLOADS:
            raise ConfigError(f"workload {name!r} is unknown; use one of {', '.join(WORKLOADS)}.")
        with as_file(files("foredraft.bench") / "prompts" / f"{name}.jsonl") as path:
            prompts += read_dataset(path)
    return prompts


def choose(
    prompts: Sequence[BenchPrompt], *, categories: Sequence[str] = (), num_prompts: int | None = None
) -> list[BenchPrompt]:
    """The prompts of `categories` (none: of all), at most `num_prompts`, taken in turn from each category.

    Order within a category is kept. Raises ConfigError for an unknown category, listing the known ones.
    """
    by_category: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    for category in categories:
        if category not in by_category:
            raise ConfigError(f"category {category!r} is unknown; use one of {', '.join(by_category)}.")
    groups = [group for category, group in by_category.items() if not categories or category in categories]
    if num_prompts is None:
        return [prompt for group in groups for prompt in group]
    if num_prompts < 1:
        raise ConfigError(f"num_prompts is {num_prompts}; give at least 1.")
    share, chosen = [0] * len(groups), 0
    while chosen < num_prompts and any(taken < len(group) for taken, group in zip(share, groups, strict=True)):
        for index, group in enumerate(groups):
            if chosen < num_prompts and share[index] < len(group):
                share[index] += 1
                chosen += 1
    return [prompt for taken, group in zip(share, groups, strict=True) for prompt in group[:taken]]


def encode(prompts: Iterable[BenchPrompt], target: Target, *, max_tokens: int) -> list[EncodedPrompt]:
    """Token ids of each prompt, by the model's chat template if it has one.

    Raises ConfigError or RequestError, with both lengths, where no room is left for an answer of `max_tokens`.
    """
    longest = target.max_model_len - max_tokens
    if longest < 1:
        raise ConfigError(
            f"max_tokens is {max_tokens}, but {target.name} holds {target.max_model_len} in all; lower it."
        )
    tokenizer = target.tokenizer
    if tokenizer is None:
        raise RequestError(f"{target.name} has no tokenizer, so it can't be given texts to answer.")
    encoded = []
    for seed, prompt in enumerate(prompts):
        tokens = _tokens(prompt, tokenizer)
        if len(tokens) > longest:
            raise RequestError(
                f"{prompt.source} has {len(tokens)} tokens, but the model's context leaves room for {longest} before "
                "the answer; lower --max-tokens or leave the prompt out."
            )
        prediction = tokenizer.encode(prompt.prediction, add_special_tokens=False) if prompt.prediction else ()
        encoded.append(EncodedPrompt(tuple(tokens), prompt.category, prompt.source, tuple(prediction), seed))
    return encoded


def _tokens(prompt: BenchPrompt, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if not tokenizer.chat_template:
        return list(tokenizer.encode("\n\n".join(message["content"] for message in prompt.messages)))
    text = tokenizer.apply_chat_template(list(prompt.messages), add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))
