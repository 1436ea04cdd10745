"""A single linear layer on the compiled kernels, for drafting heads: the decoder's format, and its threads."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor, nn

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.call import run_stages
from foredraft.target.kernels.crew import Crew
from foredraft.target.kernels.decode import PROJECT_STAGES, VERSION
from foredraft.target.kernels.matrix import whole_tiles
from foredraft.target.kernels.packing import FORMATS
from foredraft.target.quantization import WeightFormat, pack, packed_bytes

__all__ = ["PackedLinear", "packs"]

CONSTANTS = numpy.ones(at.CONSTANT_FIELDS, numpy.float32)
NO_LAYERS = numpy.zeros((1, at.LAYER_FIELDS), numpy.int64)


def packs(linear: nn.Linear) -> bool:
    """Whether the kernels can run it: whole vectors of 16 inputs, numbers that fit float32."""
    return linear.in_features % 16 == 0 and linear.weight.dtype != torch.float64


class PackedLinear(nn.Module):
    """`linear` in a weight format of the lean decoder. Inputs and outputs are float32."""

    def __init__(self, linear: nn.Linear, weight_format: WeightFormat, crew: Crew) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._crew = crew
        words = torch.empty(packed_bytes(self.out_features, self.in_features, weight_format), dtype=torch.uint8)
        self._packed = pack(linear.weight.detach(), weight_format, words)
        self._bias = None
        if linear.bias is not None:
            self._bias = nn.functional.pad(linear.bias.detach().float(), (0, -self.out_features % at.PANEL))
        plan = self._plan = numpy.zeros(at.PLAN_FIELDS, numpy.int64)
        plan[at.VERSION], plan[at.WORK], plan[at.THREADS] = VERSION, at.PROJECT, crew.threads
        plan[at.FORMAT], plan[at.HIDDEN], plan[at.VOCABULARY] = (
            FORMATS[weight_format],
            self.in_features,
            self.out_features,
        )
        plan[at.HEAD] = self._packed.words.data_ptr()
        plan[at.HEAD_SCALE] = self._packed.scale.data_ptr() if self._packed.scale is not None else 0
        plan[at.HEAD_BIAS] = self._bias.data_ptr() if self._bias is not None else 0
        self._scratch = torch.empty((crew.threads, 4096), dtype=torch.uint8)
        plan[at.SCRATCH], plan[at.SCRATCH_BYTES] = self._scratch.data_ptr(), self._scratch.shape[1]
        self._reserve(16)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        source = x.reshape(-1, self.in_features).float().contiguous()
        rows = len(source)
        if rows > self._rows:
            self._reserve(rows)
        target = torch.empty((rows, self.out_features))
        plan = self._plan
        plan[at.ROWS], plan[at.RESIDUAL], plan[at.LOGITS] = rows, source.data_ptr(), target.data_ptr()
        run_stages(self._crew, PROJECT_STAGES, plan, CONSTANTS, NO_LAYERS)
        return target.view(*x.shape[:-1], self.out_features)

    def _reserve(self, rows: int) -> None:
        self._rows = rows
        listed = 4 + 2 * self.in_features
        self._words = torch.empty((whole_tiles(rows), 4 * self.in_features), dtype=torch.uint8)
        self._listed = torch.empty((rows, listed), dtype=torch.uint8)
        self._row_scale, self._row_sum = torch.empty(rows), torch.empty(rows)
        plan = self._plan
        plan[at.WORDS], plan[at.WORD_BYTES] = self._words.data_ptr(), self._words.shape[1]
        plan[at.LISTED], plan[at.LISTED_BYTES] = self._listed.data_ptr(), listed
        plan[at.ROW_SCALE], plan[at.ROW_SUM] = self._row_scale.data_ptr(), self._row_sum.data_ptr()
