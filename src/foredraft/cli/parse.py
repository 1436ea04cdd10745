"""Turns the text of flags into values, or says in one sentence what is wrong with it. Imports nothing heavy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from foredraft.errors import ConfigError
from foredraft.types import SamplingParams

__all__ = ["DEFAULT_SPECULATION", "byte_count", "chosen_sampling", "logit_bias", "speculative_config", "text_file"]

DEFAULT_SPECULATION = {"method": "auto"}
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
CONFIG_EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 8}'
BIAS_EXAMPLE = '{"42": -100}'


def byte_count(text: str) -> int:
    """A number of bytes: 1000000, 4g (powers of 1000) or 4G (powers of 1024), as vLLM reads it."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is no number of bytes; write it like 500000000, 4g or 4G")
    return int(float(found[1]) * UNITS[found[2]])


def speculative_config(
    text: str | None,
    method: str | None = None,
    model: str | None = None,
    tokens: int | None = None,
    *,
    plain: bool = False,
    predicted: bool = False,
) -> dict[str, object] | None:
    """The configuration that the speculation flags add up to; None to decode plainly.

    Single flags override the JSON's keys. Without any, a predicted text is drafted from, if there is one.
    """
    flags = {"method": method, "model": model, "num_speculative_tokens": tokens}
    given = {key: value for key, value in flags.items() if value is not None}
    if plain:
        if text is not None or given or predicted:
            raise ConfigError("--plain decodes without speculation; drop it, or the options that configure speculation")
        return None
    config = {} if text is None else _json_object("--speculative-config", text, CONFIG_EXAMPLE)
    config |= given
    if "method" not in config and "model" not in config:  # a model's method is told by its checkpoint
        config = {**({"method": "prediction"} if predicted else DEFAULT_SPECULATION), **config}
    return config


def chosen_sampling(flags: Mapping[str, object]) -> dict[str, object]:
    """The sampling flags that were given, checked; the others are left to the model's own defaults."""
    given = {name: value for name, value in flags.items() if value is not None and value is not False and value != []}
    replace(SamplingParams(max_tokens=None), **given)  # type: ignore[arg-type]  # raises ConfigError for a bad value
    return given


def logit_bias(text: str) -> dict[int, float]:
    """Biases by token id."""
    biases: dict[int, float] = {}
    for token, bias in _json_object("--logit-bias", text, BIAS_EXAMPLE).items():
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        try:
            if not number or not token.isascii() or not token.isdecimal():
                raise ValueError(token)
            biases[int(token)] = float(bias)  # type: ignore[arg-type]
        except (ValueError, OverflowError) as error:
            raise ConfigError(
                f"--logit-bias has the entry {_shown(token)}: {_shown(bias)}; map token ids to numbers, like "
                f"{BIAS_EXAMPLE}"
            ) from error
    return biases


def text_file(path: Path) -> str:
    """A file's text, without the newline at its end."""
    try:
        return path.read_text("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} isn't UTF-8 text (byte {error.start}); convert it, or pass another file") from error
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}); pass an existing text file") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _json_object(flag: str, text: str, example: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        before, after = text[: error.pos], text[error.pos :]
        raise ConfigError(
            f"{flag} isn't valid JSON ({error.msg} at character {error.pos + 1}, marked here: {before}⟨here⟩{after}); "
            f"write it like '{example}'"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag} holds a number or a nesting beyond reason; write it like '{example}'") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} is {text}, not a JSON object; write it like '{example}'")
    return value
