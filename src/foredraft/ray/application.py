"""The Ray Serve application: a gateway in front of engine replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foredraft.ray.arguments import Replicas
from foredraft.ray.cluster import load_ray
from foredraft.server.model_spec import ModelSpec
from foredraft.server.settings import ServerSettings

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["ENGINE", "GATEWAY", "build_application"]

ENGINE, GATEWAY = "engine", "gateway"
ROUTER = "foredraft.ray.router.PrefixRouter"
HEALTH_SECONDS = 5
CONSTRUCTOR_ATTEMPTS = 3
MOST_REQUESTS = 100_000
"""In the gateway at a time; the replicas' own queues are what limits them."""


def build_application(spec: ModelSpec, settings: ServerSettings, replicas: Replicas) -> Application:
    """A gateway and as many engine replicas as `replicas` says, not deployed yet."""
    load_ray("serve")
    from ray import serve
    from ray.serve.config import AutoscalingConfig, RequestRouterConfig

    from foredraft.ray.gateway import Gateway
    from foredraft.ray.replica import EngineReplica

    slots = spec.args.max_num_seqs
    if replicas.autoscale is None:
        scale: dict[str, Any] = {"num_replicas": replicas.replicas}
    else:
        least, most = replicas.autoscale
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=least, max_replicas=most, target_ongoing_requests=slots
            )
        }
    engine: Any = serve.deployment(
        EngineReplica,
        name=ENGINE,
        max_ongoing_requests=slots + max(settings.max_queue, 1),
        ray_actor_options={"num_cpus": replicas.num_cpus, "num_gpus": replicas.num_gpus},
        health_check_period_s=HEALTH_SECONDS,
        max_constructor_retry_count=CONSTRUCTOR_ATTEMPTS,
        graceful_shutdown_timeout_s=settings.shutdown_timeout,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER, request_router_kwargs={"imbalance": replicas.imbalance}
        ),
        **scale,
    )
    gateway: Any = serve.deployment(
        Gateway,
        name=GATEWAY,
        max_ongoing_requests=MOST_REQUESTS,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.shutdown_timeout,
    )
    bound: Application = gateway.bind(engine.bind(spec, settings), settings.max_body_bytes)
    return bound
