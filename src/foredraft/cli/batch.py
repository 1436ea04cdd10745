"""`foredraft batch`: a file of requests in, a file of answers out, in OpenAI's batch format."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foredraft.cli import options
from foredraft.cli import serve_options as serving
from foredraft.cli.starting import starting
from foredraft.cli.terminal import say
from foredraft.cli.train_progress import duration, shown_progress
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from foredraft.server.batch_file import AnswerFile
    from foredraft.server.model_spec import ModelSpec
    from foredraft.server.settings import ServerSettings

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
    ray: serving.Ray = False,
    replicas: serving.Replicas = None,
    autoscale: serving.Autoscale = None,
) -> None:
    """Answer a file of requests to /v1/chat/completions and /v1/completions.

    Every line gets one answer, which may be an error, in the same order. Run it again to go on after an interruption.
    Exit code 1 if any answer is an error.
    """
    serving.check_replicas(replicas, autoscale, ray=ray)
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
                from foredraft.engine.open_target import EngineArgs
                from foredraft.server.model_spec import ModelSpec

                args = EngineArgs(
                    model=name or "",
                    dtype=dtype,
                    quantization=quantization,
                    device=device,
                    max_model_len=max_model_len,
                    max_num_seqs=16 if max_num_seqs is None else max_num_seqs,
                    max_num_batched_tokens=max_num_batched_tokens,
                    kv_cache_memory_bytes=kv_cache_memory_bytes,
                    enforce_eager=enforce_eager,
                    revision=revision,
                    trust_remote_code=trust_remote_code,
                    offline=offline,
                    seed=seed,
                )
                spec = ModelSpec(args, speculation)
                _ = spec.method  # a wrong one is refused before anything is loaded
            with shown_progress("Answering") as show:

                def progress(done: int) -> None:
                    show(done, resumed + left, f"{done} of {resumed + left}")

                if ray:
                    _on_ray(spec, settings, source, answers, replicas, autoscale, progress)
                else:
                    _locally(spec, settings, source, answers, progress)
        say(_summary(resumed + left, resumed, answers.failed, time.monotonic() - began))
        if answers.failed:
            raise typer.Exit(1)


def _locally(
    spec: ModelSpec, settings: ServerSettings, source: Path, answers: AnswerFile, progress: Callable[[int], None]
) -> None:
    from foredraft.server.app import create_service
    from foredraft.server.batch import local_batch

    service = create_service(spec.load, settings, method=spec.method)
    local_batch(service, source, answers, concurrency=spec.args.max_num_seqs, progress=progress)


def _on_ray(
    spec: ModelSpec,
    settings: ServerSettings,
    source: Path,
    answers: AnswerFile,
    replicas: int | None,
    autoscale: str | None,
    progress: Callable[[int], None],
) -> None:
    from foredraft.ray.arguments import Described, autoscale_range, cluster_share
    from foredraft.ray.batch import ray_batch

    wanted = cluster_share(spec.args.device, replicas or 1, None if autoscale is None else autoscale_range(autoscale))
    ray_batch(Described(spec, settings, wanted), source, answers, progress=progress)


def _summary(lines: int, resumed: int, failed: int, seconds: float) -> str:
    parts = [f"{lines} line{'s' * (lines != 1)} answered"]
    if resumed:
        parts.append(f"{resumed} of them earlier")
    parts.append(f"{failed or 'no'} error{'s' * (failed != 1)}")
    return " · ".join([*parts, duration(seconds)])
