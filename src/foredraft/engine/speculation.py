"""From a `speculative_config` to what the engine runs: a drafter, its most draft tokens, and who decides how many.

Three keys concern the engine rather than the drafter: `controller` ("auto" measures, "off" always drafts the full
length), its `objective`, and vLLM's `num_speculative_tokens_per_batch_size`, a fixed table.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from foredraft.drafters.base import Drafter
from foredraft.drafters.methods import build_drafter
from foredraft.economics import MeasuredPasses
from foredraft.engine.auto_controller import AutoController
from foredraft.engine.controller import Controller, FixedController, parse_table
from foredraft.engine.engine import Engine
from foredraft.engine.open_target import EngineArgs, OpenedTarget
from foredraft.engine.profiler import (
    PassCosts,
    load_profile,
    machine_name,
    measure_passes,
    profile_path,
    save_profile,
    still_holds,
)
from foredraft.engine.selection import GOODPUT, Objective, parse_objective
from foredraft.errors import ConfigError
from foredraft.target.target import Target

__all__ = ["PLAIN", "SpeculationPlan", "build_engine", "open_costs", "parse_speculation"]

logger = logging.getLogger(__name__)

CONTROLLER = "controller"
OBJECTIVE = "objective"
TABLE = "num_speculative_tokens_per_batch_size"


class SpeculationPlan(NamedTuple):
    """What was asked for; `measured` tells whether pass costs are needed."""

    method: str
    drafter: Drafter | None
    num_speculative_tokens: int
    measured: bool
    table: tuple[tuple[int, int, int], ...] = ()
    objective: Objective = GOODPUT

    def controller(self, target: Target) -> Controller:
        """Measures pass costs first if nobody has on this machine, model and format."""
        if not self.measured or self.drafter is None:
            return FixedController(self.table)
        return AutoController(open_costs(target), objective=self.objective, trims=not self.drafter.frugal)


PLAIN = SpeculationPlan("off", None, 0, measured=False)


def parse_speculation(config: Mapping[str, object] | None) -> SpeculationPlan:
    """Check a config before anything is loaded; None is plain decoding. Raises ConfigError."""
    if config is None:
        return PLAIN
    if not isinstance(config, Mapping):
        raise ConfigError(f"speculative_config is {config!r}; give a mapping such as {{'method': 'suffix'}}.")
    rest = {key: value for key, value in config.items() if key not in (CONTROLLER, OBJECTIVE, TABLE)}
    control, table = config.get(CONTROLLER, "auto"), config.get(TABLE)
    if control not in ("auto", "off"):
        raise ConfigError(f"controller is {control!r}; give 'auto' (measured) or 'off' (always the full draft length).")
    objective = parse_objective(config.get(OBJECTIVE))
    if objective != GOODPUT and (control == "off" or table is not None):
        raise ConfigError(
            f"objective is {config[OBJECTIVE]!r}, but nothing is decided here: a controller that is off or follows a "
            "table has no objective; leave one of them out."
        )
    speculation = build_drafter(rest)
    if speculation is None:
        return PLAIN
    return SpeculationPlan(
        speculation.method,
        speculation.drafter,
        speculation.num_speculative_tokens,
        measured=control == "auto" and table is None,
        table=parse_table(table) if table is not None else (),
        objective=objective,
    )


def build_engine(opened: OpenedTarget, args: EngineArgs, plan: SpeculationPlan) -> Engine:
    """An engine over a loaded target; several may share one target if only one of them works at a time."""
    return Engine(
        opened.target,
        plan.drafter,
        num_speculative_tokens=plan.num_speculative_tokens,
        controller=plan.controller(opened.target),
        max_batched_tokens=args.max_num_batched_tokens,
        kv_room=opened.kv_room,
        seed=args.seed,
        method=plan.method,
    )


def open_costs(target: Target, *, again: bool = False) -> PassCosts:
    """The target's measured pass costs; measured now if there are none that still hold, or `again`."""
    path = profile_path(target.fingerprint, target.decoder)
    table = None if again else load_profile(path)
    if table is not None and not still_holds(table, target.decoder, max_length=target.max_model_len):
        logger.info("Passes take other times than %s says; they are measured again", path)
        table = None
    if table is None:
        points = measure_passes(target.decoder, max_length=target.max_model_len)
        table = MeasuredPasses(tuple(points))
        if target.fingerprint:
            save_profile(path, points, machine_name(target.decoder.device))
    return PassCosts(table)
