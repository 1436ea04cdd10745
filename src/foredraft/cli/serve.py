"""`foredraft serve`: an OpenAI-compatible server. Checks its flags, then hands over to foredraft.server."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from foredraft.cli import options
from foredraft.cli import serve_options as own
from foredraft.cli.starting import starting
from foredraft.errors import ConfigError

__all__ = ["serve"]

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def serve(
    model: own.ServedModel,
    config: own.Config = None,
    host: own.Host = "127.0.0.1",
    port: own.Port = 8000,
    api_key: own.ApiKey = None,
    api_key_file: own.ApiKeyFile = None,
    allowed_origins: own.AllowedOrigins = None,
    ssl_keyfile: own.SslKeyfile = None,
    ssl_certfile: own.SslCertfile = None,
    root_path: own.RootPath = "",
    served_model_name: own.ServedModelName = None,
    chat_template: own.ChatTemplate = None,
    chat_template_kwargs: own.ChatTemplateKwargs = None,
    generation_config: own.GenerationConfig = "auto",
    override_generation_config: own.OverrideGenerationConfig = None,
    max_logprobs: own.MaxLogprobs = 20,
    force_include_usage: own.ForceIncludeUsage = False,
    spec_decode_metrics: own.SpecDecodeMetrics = False,
    request_metrics: own.RequestMetrics = False,
    request_id_headers: own.RequestIdHeaders = False,
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
    max_num_batched_tokens: own.MaxNumBatchedTokens = 512,
    chunked_prefill: own.ChunkedPrefill = False,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    enforce_eager: options.EnforceEager = False,
    offline: options.Offline = False,
    seed: options.Seed = None,
    max_queue: own.MaxQueue = 256,
    max_body_bytes: own.MaxBodyBytes = 8 * 2**20,
    request_timeout: own.RequestTimeout = None,
    shutdown_timeout: own.ShutdownTimeout = 60.0,
    metrics_namespace: own.MetricsNamespace = "foredraft",
    otlp_traces_endpoint: own.OtlpTracesEndpoint = None,
    disable_log_stats: own.DisableLogStats = False,
    enable_log_requests: own.EnableLogRequests = False,
    disable_access_log: own.DisableAccessLog = False,
    log_level: own.LogLevel = "info",
    ray: own.Ray = False,
    replicas: own.Replicas = None,
    autoscale: own.Autoscale = None,
) -> None:
    """Serve a model over OpenAI's API, until SIGTERM or Ctrl-C.

    Without other options: on http://127.0.0.1:8000, for this machine only, drafting where it pays.
    """
    missing = next((name for name in NEEDED if find_spec(name) is None), None)
    if missing is not None:
        raise ConfigError(f"serve needs {missing}, which is not installed; run pip install 'foredraft[serve]'")
    if log_level not in LOG_LEVELS:
        raise ConfigError(f"--uvicorn-log-level is {log_level!r}; give one of {', '.join(LOG_LEVELS)}")
    own.check_replicas(replicas, autoscale, ray=ray)
    if ray:
        own.check_ray(port, tls=ssl_keyfile is not None)
    speculation = own.server_speculation(speculative_config_json, spec_method, spec_model, spec_tokens, plain=plain)
    from foredraft.page import page_directory, page_hash
    from foredraft.server.run import Listening, configure_logging
    from foredraft.server.run import serve as run_server
    from foredraft.server.settings import PlanPage, ServerSettings

    settings = ServerSettings(
        model_names=tuple(served_model_name or [model]),
        api_keys=own.api_keys(api_key, api_key_file),
        generation_config=own.json_value(
            "--override-generation-config", override_generation_config, dict, '{"temperature": 0.5}'
        ),
        chat_template=own.chat_template(chat_template),
        chat_template_kwargs=own.json_value(
            "--default-chat-template-kwargs", chat_template_kwargs, dict, '{"enable_thinking": false}'
        ),
        max_logprobs=max_logprobs,
        max_queue=max_queue,
        max_body_bytes=max_body_bytes,
        request_timeout=request_timeout,
        shutdown_timeout=shutdown_timeout,
        allowed_origins=tuple(own.json_value("--allowed-origins", allowed_origins, list, '["https://a.example"]')),
        metrics_namespace=metrics_namespace,
        spec_decode_metrics=spec_decode_metrics,
        request_metrics=request_metrics,
        force_include_usage=force_include_usage,
        otlp_traces_endpoint=otlp_traces_endpoint,
        log_stats=not disable_log_stats,
        log_requests=enable_log_requests,
        plan=PlanPage(page_directory(), page_hash),
    )
    listening = Listening(host=host, port=port, ssl_keyfile=ssl_keyfile, ssl_certfile=ssl_certfile, root_path=root_path)
    with starting(model, offline=offline):
        from foredraft.engine.open_target import EngineArgs
        from foredraft.server.app import create_service
        from foredraft.server.model_spec import ModelSpec

        args = EngineArgs(
            model=model,
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
        spec = ModelSpec(args, speculation, generation_config)
        method = spec.method  # a wrong one is refused before anything is loaded

    configure_logging(log_level, access=not disable_access_log)
    if ray:
        from foredraft.ray.arguments import Described, autoscale_range, cluster_share
        from foredraft.ray.run import serve_on_ray

        wanted = cluster_share(args.device, replicas or 1, None if autoscale is None else autoscale_range(autoscale))
        serve_on_ray(Described(spec, replace(settings, plan=None), wanted), listening)
        return
    run_server(create_service(spec.load, settings, method=method), listening, log_level=log_level)
