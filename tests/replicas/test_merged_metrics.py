"""One page of metrics from several replicas'."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from foredraft.ray.merged_metrics import merged
from foredraft.server.metrics import Metrics


def test_every_engine_has_its_samples_and_what_has_no_engine_is_added_up() -> None:
    replicas = [Metrics("tiny", "vllm", "suffix", engine) for engine in ("one", "two")]
    for count, replica in enumerate(replicas, 3):
        replica.time_to_first_token.observe(0.05)
        replica.load(count, 0, 0.5, 0)
        for _ in range(count):
            replica.rejected(429)
    page = merged(replica.render() for replica in replicas).decode()
    assert page.count("# TYPE vllm:num_requests_running gauge") == 1
    families = {family.name: family for family in text_string_to_metric_families(page)}
    alone = {family.name: family for family in text_string_to_metric_families(replicas[0].render().decode())}
    assert families.keys() == alone.keys()
    assert {name: family.type for name, family in families.items()} == {
        name: family.type for name, family in alone.items()
    }
    running = {sample.labels["engine"]: sample.value for sample in families["vllm:num_requests_running"].samples}
    assert running == {"one": 3, "two": 4}
    seconds = families["vllm:time_to_first_token_seconds"].samples
    assert [sample.value for sample in seconds if sample.name.endswith("_count")] == [1, 1]
    refused = families["foredraft_requests_rejected"].samples
    assert [sample.value for sample in refused if sample.labels == {"status": "429"}] == [7]


def test_no_replica_no_samples() -> None:
    assert merged([]) == b""
