"""The options that only `serve` has, and how their texts become values. Names and meaning are vLLM's where it has the
thing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from foredraft.cli.options import MODEL
from foredraft.cli.parse import speculative_config
from foredraft.errors import ConfigError

NETWORK, API, LIMITS, LOGS, REPLICAS = "Network", "API", "Limits", "Logs and metrics", "Replicas"
API_KEY_VARIABLE = "FOREDRAFT_API_KEY"


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make a YAML file's entries the defaults of the options with the same names."""
    if path is None:
        return None
    import yaml  # type: ignore[import-untyped]

    try:
        entries = yaml.safe_load(path.read_text("utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read as YAML ({str(error).splitlines()[0]}); correct it.") from error
    if not isinstance(entries, dict):
        raise ConfigError(f"{path} is no list of options; write lines like max-num-seqs: 8.")
    names = {option.lstrip("-").replace("-", "_"): param for param in context.command.params for option in param.opts}
    names |= {param.name or "": param for param in context.command.params}
    defaults: dict[str, Any] = dict(context.default_map or {})
    for key, value in entries.items():
        param = names.get(str(key).replace("-", "_"))
        if param is None or param.name is None:
            raise ConfigError(f"{path} has the entry {key!r}, which is no option of serve; see foredraft serve --help.")
        defaults[param.name] = json.dumps(value) if isinstance(value, dict) else value
    context.default_map = defaults
    return path


ServedModel = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Hub id, folder, .gguf file, or the alias smollm2-135m.", show_default=False),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", is_eager=True, callback=read_config, help="A YAML file with these options, by their names."
    ),
]
Host = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        envvar="FOREDRAFT_HOST",
        show_envvar=False,
        help="Address to listen on; 0.0.0.0 is all of them.",
        rich_help_panel=NETWORK,
    ),
]
Port = Annotated[
    int,
    typer.Option(metavar="N", envvar="FOREDRAFT_PORT", show_envvar=False, help="0 is any.", rich_help_panel=NETWORK),
]
SslKeyfile = Annotated[
    str | None, typer.Option(metavar="FILE", help="The private key, to serve HTTPS.", rich_help_panel=NETWORK)
]
SslCertfile = Annotated[str | None, typer.Option(metavar="FILE", help="The certificate.", rich_help_panel=NETWORK)]
RootPath = Annotated[
    str, typer.Option(metavar="PATH", help="Prefix that a proxy strips.", rich_help_panel=NETWORK, show_default=False)
]
AllowedOrigins = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="Web pages that may read answers, such as '[\"https://a.example\"]'.",
        rich_help_panel=NETWORK,
    ),
]
ApiKey = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY",
        help=f"Required of clients; may be repeated. Better: the variable {API_KEY_VARIABLE}, or a file.",
        rich_help_panel=NETWORK,
    ),
]
ApiKeyFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Keys, one a line.", rich_help_panel=NETWORK)]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="What clients call the model; may be repeated.", rich_help_panel=API),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A Jinja template (or its text) instead of the model's.", rich_help_panel=API),
]
ChatTemplateKwargs = Annotated[
    str | None,
    typer.Option(
        "--default-chat-template-kwargs", metavar="JSON", help="Variables for the template.", rich_help_panel=API
    ),
]
GenerationConfig = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        help="Defaults for sampling: auto is the model's own, none is neutral, or a folder's.",
        rich_help_panel=API,
    ),
]
OverrideGenerationConfig = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="Overrides them, such as '{\"temperature\": 0.5}'.", rich_help_panel=API),
]
MaxLogprobs = Annotated[
    int, typer.Option(metavar="N", help="Most alternatives a request may ask for.", rich_help_panel=API)
]
ForceIncludeUsage = Annotated[
    bool,
    typer.Option("--enable-force-include-usage", help="Send usage at the end of every stream.", rich_help_panel=API),
]
SpecDecodeMetrics = Annotated[
    bool,
    typer.Option("--per-request-spec-decode-metrics", help="Report speculation with each answer.", rich_help_panel=API),
]
RequestMetrics = Annotated[
    bool, typer.Option("--enable-per-request-metrics", help="Report times with each answer.", rich_help_panel=API)
]
RequestIdHeaders = Annotated[
    bool,
    typer.Option(
        "--enable-request-id-headers", help="For vLLM's sake: answers always have X-Request-Id.", rich_help_panel=API
    ),
]
MaxNumBatchedTokens = Annotated[
    int, typer.Option(metavar="N", help="Most prompt tokens computed in a step.", rich_help_panel=MODEL)
]
ChunkedPrefill = Annotated[
    bool,
    typer.Option(
        "--enable-chunked-prefill", help="For vLLM's sake: prompts are always read in chunks.", rich_help_panel=MODEL
    ),
]
MaxQueue = Annotated[
    int,
    typer.Option(metavar="N", help="Sequences that may wait; more are answered with 429.", rich_help_panel=LIMITS),
]
MaxBodyBytes = Annotated[
    int, typer.Option(metavar="N", help="Longest request body; longer ones get 413.", rich_help_panel=LIMITS)
]
RequestTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="End a request after this time. [default: never]", rich_help_panel=LIMITS),
]
ShutdownTimeout = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="Time that running requests get after SIGTERM.", rich_help_panel=LIMITS),
]
MetricsNamespace = Annotated[
    str,
    typer.Option(metavar="NAME", help="foredraft, or vllm for its dashboards.", rich_help_panel=LOGS),
]
OtlpTracesEndpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Send a span for each request there, by OTLP over HTTP (OpenTelemetry).",
        rich_help_panel=LOGS,
    ),
]
DisableLogStats = Annotated[
    bool, typer.Option("--disable-log-stats", help="No figures every ten seconds.", rich_help_panel=LOGS)
]
EnableLogRequests = Annotated[
    bool,
    typer.Option(
        "--enable-log-requests", help="Log each request's settings and the text of its prompt.", rich_help_panel=LOGS
    ),
]
DisableAccessLog = Annotated[
    bool, typer.Option("--disable-uvicorn-access-log", help="No line per request.", rich_help_panel=LOGS)
]
LogLevel = Annotated[
    str,
    typer.Option("--uvicorn-log-level", metavar="NAME", help="debug, info, warning or error.", rich_help_panel=LOGS),
]
Ray = Annotated[
    bool,
    typer.Option(
        "--ray",
        help="Use replicas on the Ray cluster of RAY_ADDRESS, or on one on this machine.",
        rich_help_panel=REPLICAS,
    ),
]
Replicas = Annotated[
    int | None, typer.Option(metavar="N", help="With --ray: how many. [default: 1]", rich_help_panel=REPLICAS)
]
Autoscale = Annotated[
    str | None,
    typer.Option(metavar="MIN:MAX", help="With --ray: as many as the load needs.", rich_help_panel=REPLICAS),
]


def check_replicas(replicas: int | None, autoscale: str | None, *, ray: bool) -> None:
    """Refuse numbers of replicas that contradict each other, or that nobody asked Ray for."""
    if not ray and (replicas is not None or autoscale is not None):
        raise ConfigError("--replicas and --autoscale need --ray; add it.")
    if replicas is not None and autoscale is not None:
        raise ConfigError("--replicas and --autoscale exclude each other; drop one of them.")


def check_ray(port: int, *, tls: bool) -> None:
    """Refuse flags that replicas can't have."""
    if tls:
        raise ConfigError("--ray doesn't go with --ssl-keyfile; put a proxy in front that ends TLS.")
    if port == 0:
        raise ConfigError("--ray needs a port that is known before; give --port another value than 0.")


def server_speculation(
    text: str | None, method: str | None, model: str | None, tokens: int | None, *, plain: bool
) -> dict[str, object] | None:
    """What the speculation flags add up to. Without a method or a model among them it is "auto", since a server gets
    requests of all kinds.
    """
    config = speculative_config(text, method, model, tokens, plain=plain)
    chosen = method or model or {"method", "model"} & json.loads(text or "{}").keys()
    return config if chosen or config is None else {**config, "method": "auto"}


def json_value(flag: str, text: str | None, kind: type, example: str) -> Any:
    """A flag's JSON, which must be of that kind; an empty one without the flag."""
    if text is None:
        return kind()
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{flag} is {text!r}, which isn't valid JSON ({error.msg}); write it like {example}"
        ) from error
    if not isinstance(value, kind):
        raise ConfigError(f"{flag} is {text}; write it like {example}")
    return value


def api_keys(given: list[str] | None, file: Path | None) -> tuple[str, ...]:
    """Keys from the flags, the environment and the file."""
    keys = [*(given or ())]
    if key := os.environ.get(API_KEY_VARIABLE):
        keys.append(key)
    if file is not None:
        try:
            keys += [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} can't be read; pass a text file with one key a line.") from error
        if not keys:
            raise ConfigError(f"{file} has no key; write one a line.")
    return tuple(dict.fromkeys(keys))


def chat_template(given: str | None) -> str | None:
    """A template's text, from a file or as it is."""
    if given is None or "{" in given or "\n" in given:
        return given
    try:
        return Path(given).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The chat template {given} can't be read; pass a file, or the template's text.") from error
