"""The metrics of all replicas as one page, which Prometheus scrapes from the gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

__all__ = ["merged"]


def merged(pages: Iterable[bytes]) -> bytes:
    """Each metric once, with the samples of all pages; what two pages count under the same labels is added up."""
    families: dict[str, Metric] = {}
    for page in pages:
        for family in text_string_to_metric_families(page.decode()):
            known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            known.samples += family.samples
    registry = CollectorRegistry()
    registry.register(_Families([_added_up(family) for family in families.values()]))
    return generate_latest(registry)


def _added_up(family: Metric) -> Metric:
    total = Metric(family.name, family.documentation, family.type)
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in family.samples:
        key = (sample.name, tuple(sample.labels.items()))
        values[key] = values.get(key, 0.0) + sample.value
    for (name, labels), value in values.items():
        total.add_sample(name, dict(labels), value)
    return total


class _Families(Collector):
    """Gives a registry metrics that are made already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)
