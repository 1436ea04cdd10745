"""`foredraft generate`: one prompt in, text to stdout as it is decoded, figures to stderr.

With --json, one object on stdout instead of the text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foredraft.cli import options
from foredraft.cli.parse import chosen_sampling, logit_bias, speculative_config, text_file
from foredraft.cli.prompt import read_prompt
from foredraft.cli.starting import answer_params, encode_prompt, starting
from foredraft.cli.terminal import TextWriter, acceptance, both_speeds, describe_difference, dim, figures, say
from foredraft.errors import ConfigError
from foredraft.types import SamplingParams

if TYPE_CHECKING:
    from foredraft.cli.compare import Comparison
    from foredraft.engine.llm import LLM
    from foredraft.engine.outputs import Delta
    from foredraft.engine.text import Piece

__all__ = ["generate"]

OUTPUT = options.OUTPUT


def generate(
    model: options.Model,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help='The text to answer; "-" or nothing reads stdin.', show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="A text to put before the prompt, or instead of it."),
    ] = None,
    system: options.System = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    show: options.Show = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Decode plainly, too, and say if the tokens are the same.", rich_help_panel=OUTPUT
        ),
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT)
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="With --json: log-probabilities, with the N likeliest tokens.", rich_help_panel=OUTPUT
        ),
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", "-n", metavar="N", help="How many answers.", rich_help_panel=OUTPUT)
    ] = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    logit_bias_json: options.LogitBias = None,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = None,
    min_tokens: options.MinTokens = None,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_eos: options.IgnoreEos = False,
    speculative_config_json: options.SpeculativeConfig = None,
    spec_method: options.SpecMethod = None,
    spec_model: options.SpecModel = None,
    spec_tokens: options.SpecTokens = None,
    prediction: options.Prediction = None,
    plain: options.Plain = False,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    device: options.Device = "auto",
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    enforce_eager: options.EnforceEager = False,
    offline: options.Offline = False,
) -> None:
    """Answer or complete one prompt.

    The model's chat template is applied if it has one. Text goes to stdout, figures go to stderr.
    """
    config = speculative_config(
        speculative_config_json, spec_method, spec_model, spec_tokens, plain=plain, predicted=prediction is not None
    )
    given = chosen_sampling(
        {
            "n": n,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "logit_bias": None if logit_bias_json is None else logit_bias(logit_bias_json),
            "seed": seed,
            "max_tokens": max_tokens,
            "min_tokens": min_tokens,
            "stop": stop,
            "stop_token_ids": stop_token_ids,
            "ignore_eos": ignore_eos,
            "logprobs": logprobs,
            "prediction": None if prediction is None else text_file(prediction),
        }
    )
    check_flags(plain=plain, compared=compare, as_json=json_, logprobs=logprobs, raw=raw, system=system)
    text = read_prompt(prompt, file)
    with starting(model, offline=offline):
        from foredraft.engine.llm import LLM

        llm = LLM(
            model,
            speculative_config=config,
            dtype=dtype,
            quantization=quantization,
            device=device,
            max_model_len=max_model_len,
            max_num_seqs=(n or 1) if max_num_seqs is None else max_num_seqs,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            enforce_eager=enforce_eager,
            revision=revision,
            trust_remote_code=trust_remote_code,
            offline=offline,
        )
        tokens = encode_prompt(llm, text, raw=raw, system=system)
        params = answer_params(llm, given, len(tokens))
    if compare:
        answer_twice(llm, text, tokens, params, show=show, as_json=json_)
    else:
        answer(llm, text, tokens, params, show=show, as_json=json_)


def check_flags(
    *, plain: bool, compared: bool, as_json: bool, logprobs: int | None, raw: bool, system: str | None
) -> None:
    """Refuse flags that contradict one another."""
    if plain and compared:
        raise ConfigError("--compare needs speculation to compare with; drop --plain")
    if logprobs is not None and not as_json:
        raise ConfigError("--logprobs are printed by --json only; add --json")
    if raw and system is not None:
        raise ConfigError("--raw leaves no place for --system; drop one of them")


def answer(llm: LLM, text: str, tokens: list[int], params: SamplingParams, *, show: bool, as_json: bool) -> None:
    """Decode once and print."""
    from foredraft.cli.decode import decode
    from foredraft.cli.report import answer_object

    request = llm.add(tokens, params)
    if as_json:
        decoded = decode(llm.engine, request)
        print(json.dumps(answer_object(llm, text, decoded)))
        return
    with AnswerPrinter(params.n, show=show) as printer:
        decoded = decode(llm.engine, request, printer.add)
    say(dim(figures(decoded, speculative=llm.engine.drafter is not None)))


def answer_twice(llm: LLM, text: str, tokens: list[int], params: SamplingParams, *, show: bool, as_json: bool) -> None:
    """Decode plainly and by speculation, print the latter and how the two compare. Exit code 1 if they differ."""
    from foredraft.cli.compare import compare
    from foredraft.cli.report import comparison_object

    if as_json:
        comparison = compare(llm, tokens, params)
        print(json.dumps(comparison_object(llm, text, comparison)))
    else:
        with AnswerPrinter(params.n, show=show) as printer:
            comparison = compare(llm, tokens, params, printer.add)
        say_comparison(comparison)
    if not comparison.identical:
        raise typer.Exit(1)


def say_comparison(comparison: Comparison) -> None:
    """Both runs' figures and the verdict, on stderr."""
    say(dim(both_speeds(comparison)))
    verdict = "yes" if comparison.identical else f"no, {describe_difference(comparison)}"
    accepted = acceptance(comparison.speculative.statistics)
    say(f"{comparison.speedup:.2f} times as fast · {accepted} · identical: {verdict}")


class AnswerPrinter:
    """Streams one answer, or prints several, each under its number, when all are done."""

    def __init__(self, count: int, *, show: bool) -> None:
        self._writer = TextWriter(show_drafts=show)
        self._waiting: list[list[Piece]] = [[] for _ in range(count)] if count > 1 else []

    def add(self, delta: Delta) -> None:
        if self._waiting:
            self._waiting[delta.index] += delta.pieces
        else:
            self._writer.write(delta.pieces)

    def __enter__(self) -> AnswerPrinter:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._waiting:
            self._writer.__exit__()
        for number, pieces in enumerate(self._waiting, start=1):
            print(f"[{number} of {len(self._waiting)}]")
            with self._writer as writer:
                writer.write(pieces)
