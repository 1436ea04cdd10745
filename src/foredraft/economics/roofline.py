"""A pass time from first principles: whichever takes longer, the arithmetic or the memory traffic.

Linear layers read every weight once however many rows there are, and do 2 FLOPs per weight and row. Attention reads
every cached key and value once, and does 4 FLOPs per cached position, layer and query channel for each row. The two
parts run one after the other, each at the pace of its own bottleneck (Williams et al. 2009, the roofline):

    T = max(2 P rows / F, P bytes / W) + max(4 L H rows context / F, KV bytes cached / W)

It says where speculation stops paying, not how fast an engine is: a real pass adds launches, norms and sampling. Peak
rates below are the makers' dense bf16 figures; "cpu" is a round number for a desktop. Measure for real answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from foredraft.economics.checks import check_positive
from foredraft.economics.passes import PassTime


@dataclass(frozen=True)
class Machine:
    """Peak rates: FLOP/s of the format the model runs in, and bytes/s of the memory that holds it."""

    flops_per_second: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        check_positive(self.flops_per_second, "FLOP/s of the machine")
        check_positive(self.bytes_per_second, "bytes/s of the machine")


@dataclass(frozen=True)
class ModelShape:
    """What a pass must read and multiply. Widths are heads x head size; the cache keeps `cache_bytes` per number."""

    parameters: float
    layers: int
    query_width: int
    key_value_width: int
    bytes_per_parameter: float = 2.0
    cache_bytes: float = 2.0

    def __post_init__(self) -> None:
        check_positive(self.parameters, "parameters of the model")
        check_positive(self.layers, "layers of the model")
        check_positive(self.query_width, "query width of the model")
        check_positive(self.key_value_width, "key-value width of the model")
        check_positive(self.bytes_per_parameter, "bytes per parameter")
        check_positive(self.cache_bytes, "bytes per cached number")

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.bytes_per_parameter

    @property
    def cache_bytes_per_token(self) -> float:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.key_value_width * self.cache_bytes


def roofline(machine: Machine, model: ModelShape) -> PassTime:
    """The pass time, in milliseconds, of `model` on `machine`."""

    def pass_time(rows: int, cached: int, batch: int) -> float:
        linear = max(
            2 * model.parameters * rows / machine.flops_per_second, model.weight_bytes / machine.bytes_per_second
        )
        attention = max(
            4 * model.layers * model.query_width * rows * (cached / batch) / machine.flops_per_second,
            model.cache_bytes_per_token * cached / machine.bytes_per_second,
        )
        return 1000 * (linear + attention)

    return pass_time


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "cpu": Machine(1e12, 60e9),
        "rtx-4090": Machine(165e12, 1008e9),
        "a100": Machine(312e12, 2039e9),
        "h200": Machine(989e12, 4800e9),
    }
)

MODELS: Mapping[str, ModelShape] = MappingProxyType(
    {
        "smollm2-135m": ModelShape(134.5e6, layers=30, query_width=576, key_value_width=192),
        "qwen3-0.6b": ModelShape(596e6, layers=28, query_width=2048, key_value_width=1024),
        "llama-3.1-8b": ModelShape(8.03e9, layers=32, query_width=4096, key_value_width=1024),
        "llama-3.1-70b": ModelShape(70.6e9, layers=80, query_width=8192, key_value_width=1024),
    }
)
