"""Greedy decoding by transformers' own `generate`, as a yardstick beside ours: eager attention, its own KV cache, one
prompt at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.bench.decode import Answer, BlockRun
from foredraft.bench.memory import peak_resident_mb, reset_peak
from foredraft.bench.workloads import EncodedPrompt
from foredraft.engine.open_target import EngineArgs
from foredraft.engine.outputs import SpeculationStats
from foredraft.types import SamplingParams

__all__ = ["TransformersReference"]


class TransformersReference:
    """Holds a second copy of the model, in `dtype`. Calling it decodes a block."""

    def __init__(self, args: EngineArgs, dtype: str) -> None:
        from foredraft.target.loading import load_target

        loaded = load_target(
            args.model,
            dtype=dtype,
            revision=args.revision,
            trust_remote_code=args.trust_remote_code,
            max_model_len=args.max_model_len,
            offline=args.offline,
        )
        self.model = loaded.model
        self.eos = list(loaded.eos_token_ids)

    @torch.inference_mode()
    def __call__(self, prompts: Sequence[EncodedPrompt], params: SamplingParams, concurrency: int = 1) -> BlockRun:
        """Decode greedily and one prompt after the other, whatever else is asked for."""
        run = BlockRun([])
        reset_peak()
        began = time.perf_counter()
        for prompt in prompts:
            run.answers.append(self._answer(prompt, params.max_tokens))
        run.seconds = time.perf_counter() - began
        run.steps = sum(answer.stats.steps for answer in run.answers)
        run.verify = run.seconds
        run.peak_memory_mb = peak_resident_mb()
        return run

    def _answer(self, prompt: EncodedPrompt, max_tokens: int | None) -> Answer:
        clock = _Clock()
        tokens = torch.tensor([prompt.tokens], device=self.model.device)
        output = self.model.generate(  # type: ignore[operator]
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=self.eos or None,
            pad_token_id=self.eos[0] if self.eos else 0,
            streamer=clock,
        )
        answer = output[0, len(prompt.tokens) :].tolist()
        stats = SpeculationStats(steps=len(answer), emitted=len(answer))
        return Answer(answer, stats, clock.times)


class _Clock:
    """A streamer, in transformers' sense: notes when each token came."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.times: list[float] = []
        self._prompt_seen = False

    def put(self, value: Tensor) -> None:
        if self._prompt_seen:
            self.times.append(time.perf_counter() - self.began)
        self._prompt_seen = True

    def end(self) -> None:
        return None
