"""Times a start in a process of its own, and what memory it takes. Run as `python -m foredraft.bench.startup '{"model":
...}'`.

Prints one JSON object. Nothing heavy is imported before the clock runs.
"""

from __future__ import annotations

import json
import sys
import time

from foredraft.bench.memory import peak_resident_mb, reset_peak, resident_mb

__all__ = ["run_startup"]

TOKENS = 96
PROMPT = [token % 97 + 3 for token in range(32)]


def run_startup(arguments: dict[str, object]) -> dict[str, float]:
    """Load the model that `arguments`, the fields of an EngineArgs, describe, and decode a few tokens plainly."""
    began = time.perf_counter()
    import torch  # noqa: F401 - its memory is the baseline

    torch_mb = resident_mb()
    from foredraft.bench.weights import weight_bytes
    from foredraft.engine.engine import Engine
    from foredraft.engine.open_target import EngineArgs, open_target
    from foredraft.types import SamplingParams

    imported = time.perf_counter()
    engine = Engine(open_target(EngineArgs(**arguments)).target)  # type: ignore[arg-type]
    loaded = time.perf_counter()
    loaded_mb, load_peak_mb = resident_mb(), peak_resident_mb()
    tokens = min(TOKENS, engine.target.max_model_len - len(PROMPT))
    engine.add(PROMPT, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
    reset_peak()
    engine.step()
    first_token = time.perf_counter()
    while not engine.idle:
        engine.step()
    cache = engine.target.cache
    return {
        "import_s": imported - began,
        "load_s": loaded - imported,
        "first_token_s": first_token - loaded,
        "tokens": len(PROMPT) + tokens,
        "torch_mb": torch_mb,
        "loaded_mb": loaded_mb,
        "load_peak_mb": load_peak_mb,
        "decode_peak_mb": peak_resident_mb(),
        "weights_mb": (weight_bytes(engine.target.decoder) or 0) / 1e6,
        "kv_mb": cache.shape.bytes_per_token(cache.dtype.itemsize) * (len(PROMPT) + tokens) / 1e6,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_startup(json.loads(sys.argv[1]))) + "\n")
