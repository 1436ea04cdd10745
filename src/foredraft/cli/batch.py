"""`foredraft batch`: a file of requests in, a file of answers out, in OpenAI's batch format."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from foredraft.cli import options
from foredraft.cli import serve_options as serving
from foredraft.cli.starting import starting
from foredraft.cli.terminal import say
from foredraft.cli.train_progress import duration, shown_progress
from foredraft.errors import ConfigError

__all__ = ["batch"]

NEEDED = ("fastapi", "prometheus_client")
QUEUE = 1 << 20
"""Sequences that may wait: enough for any number of choices a line may have."""


def batch(
    source: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help="Requests, one a line: custom_id, method, url, body.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUT.jsonl", help="Answers, one a line; those already there are kept.")
    ],
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="[default: what the first request names]", show_default=False)
    ] = None,
    served_model_name: serving.ServedModelName = None,
    chat_template: serving.ChatTemplate = None,
    chat_template_kwargs: serving.ChatTemplateKwargs = None,
    override_generation_config: serving.OverrideGenerationConfig = None,
    max_logprobs: serving.MaxLogprobs = 20,
    spec_decode_metrics: serving.SpecDecodeMetrics = False,
    speculative_config_json: options.SpeculativeConfig = None,
    spec_method: options.SpecMethod = None,
    spec_model: options.SpecModel = None,
    spec_tokens: options.SpecTokens = None,
    plain: options.Plain = False,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    device: options.Device = "auto",
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: serving.MaxNumBatchedTokens = 512,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    enforce_eager: options.EnforceEager = False,
    offline: options.Offline = False,
    seed: options.Seed = None,
) -> None:
    """Answer a file of requests to /v1/chat/completions and /v1/completions.

    Every line gets one answer, which may be an error, in the same order. Run it again to go on after an interruption.
    Exit code 1 if any answer is an error.
    """
    missing = next((name for name in NEEDED if find_spec(name) is None), None)
    if missing is not None:
        raise ConfigError(f"batch needs {missing}, which is not installed; run pip install 'foredraft[serve]'")
    from foredraft.server.batch_file import AnswerFile, first_model, read_lines, remaining_lines
    from foredraft.server.settings import ServerSettings

    name = model or first_model(source)
    if name is None and next(read_lines(source), None) is not None:
        raise ConfigError(f"No request in {source} names a model; give --model.")
    if target.exists() and target.samefile(source):
        raise ConfigError(f"{target} is the file of requests itself; name another one for the answers.")
    speculation = serving.server_speculation(speculative_config_json, spec_method, spec_model, spec_tokens, plain=plain)
    settings = ServerSettings(
        model_names=tuple(served_model_name or [name or "none"]),
        generation_config=serving.json_value(
            "--override-generation-config", override_generation_config, dict, '{"temperature": 0.5}'
        ),
        chat_template=serving.chat_template(chat_template),
        chat_template_kwargs=serving.json_value(
            "--default-chat-template-kwargs", chat_template_kwargs, dict, '{"enable_thinking": false}'
        ),
        max_logprobs=max_logprobs,
        max_queue=QUEUE,
        spec_decode_metrics=spec_decode_metrics,
        log_stats=False,
    )
    with AnswerFile.open(target) as answers:
        resumed = len(answers.custom_ids)
        left = sum(1 for _ in remaining_lines(source, answers.custom_ids))
        began = time.monotonic()
        if left:
            with starting(name or "", offline=offline):
                from foredraft.engine.llm import LLM
                from foredraft.engine.open_target import EngineArgs
                from foredraft.engine.speculation import parse_speculation
                from foredraft.server.app import create_service
                from foredraft.server.batch import local_batch

                args = EngineArgs(
                    model=name or "",
                    dtype=dtype,
                    quantization=quantization,
                    device=device,
                    max_model_len=max_model_len,
                    max_num_seqs=max_num_seqs or 16,
                    max_num_batched_tokens=max_num_batched_tokens,
                    kv_cache_memory_bytes=kv_cache_memory_bytes,
                    enforce_eager=enforce_eager,
                    revision=revision,
                    trust_remote_code=trust_remote_code,
                    offline=offline,
                    seed=seed,
                )
                method = parse_speculation(speculation).method
            service = create_service(lambda: LLM.from_args(args, speculation), settings, method=method)
            with shown_progress("Answering") as show:
                local_batch(
                    service,
                    source,
                    answers,
                    concurrency=args.max_num_seqs,
                    progress=lambda done: show(done, resumed + left, f"{done} of {resumed + left}"),
                )
        say(_summary(resumed + left, resumed, answers.failed, time.monotonic() - began))
        if answers.failed:
            raise typer.Exit(1)


def _summary(lines: int, resumed: int, failed: int, seconds: float) -> str:
    parts = [f"{lines} line{'s' * (lines != 1)} answered"]
    if resumed:
        parts.append(f"{resumed} of them earlier")
    parts.append(f"{failed or 'no'} error{'s' * (failed != 1)}")
    return " · ".join([*parts, duration(seconds)])
