"""What the file of an EAGLE head says, in any dialect: its tensors under uniform names, and the sizes that follow from
them and from the configuration.

Sizes are read off the tensors, since configurations leave out or misstate them; the configuration decides only what
tensors can't tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from foredraft.errors import LoadError
from foredraft.heads.config import Config
from foredraft.heads.dialects import eagle_name
from foredraft.heads.files import HeadFiles
from foredraft.heads.info import Dialect, TargetFacts

__all__ = ["EagleSource", "Sizes", "open_source"]

LEFT_ASIDE = ("verifier_lm_head.", "verifier_norm.", "parallel_draft_heads.")
LLAMA_HEADS, QWEN3_HEAD_DIM = 32, 128  # what transformers assumes where a configuration is silent


class Sizes(NamedTuple):
    """What the tensors' shapes say."""

    hidden: int
    fc_width: int
    layers: int
    query: int
    key: int
    intermediate: int


class EagleSource(NamedTuple):
    """A checkpoint's contents.

    whole   its configuration; `config` is the part that describes the transformer layer
    names   uniform name of each tensor -> the file's; `shapes` are by uniform name
    notes   sentences about tensors that were left aside
    """

    path: str
    dialect: Dialect
    generation: Literal[1, 3]
    whole: Config
    config: Config
    names: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    sizes: Sizes
    notes: tuple[str, ...]

    def vocab_size(self, target: TargetFacts) -> int:
        """The target's, from the tensors that have it, else as stated, else as known. Raises LoadError if none
        tells.
        """
        for name in ("embed_tokens.weight", "t2d"):
            if name in self.shapes:
                return self.shapes[name][0]
        stated = self.config.whole("vocab_size") or target.vocab_size
        if stated is None:
            raise LoadError(
                f"{self.path} doesn't say how large the target's vocabulary is; add vocab_size to its config.json"
            )
        return stated

    def draft_vocab_size(self, vocab_size: int) -> int:
        """How many tokens the head can draft."""
        counted = (self.shapes.get(name) for name in ("lm_head.weight", "d2t", "token_map"))
        if told := next((shape for shape in counted if shape), None):
            return told[0]
        return self.config.whole("draft_vocab_size") or self.whole.whole("draft_vocab_size") or vocab_size

    def target_hidden(self, target: TargetFacts) -> int:
        """Width of one tapped layer of the target."""
        stated = self.whole.whole("target_hidden_size") or self.config.whole("target_hidden_size")
        if stated or self.generation == 1:
            return stated or self.sizes.hidden
        if "fc_norm.0.weight" in self.shapes:
            return self.shapes["fc_norm.0.weight"][0]
        width = self.sizes.fc_width
        if width % self.sizes.hidden == 0:
            return self.sizes.hidden
        return target.hidden if target.hidden and width % target.hidden == 0 else width // 3

    def attention(self) -> tuple[int, int]:
        """Query heads and their size. Raises LoadError if the projections have other sizes."""
        heads = self.config.whole("num_attention_heads") or LLAMA_HEADS
        qwen3 = self.config.found.get("model_type") == "qwen3"
        stated = self.config.whole("head_dim") or (QWEN3_HEAD_DIM if qwen3 else None)
        head_dim = stated or self.sizes.query // heads
        if head_dim * heads != self.sizes.query or self.sizes.key % head_dim:
            raise LoadError(
                f"{self.path} has {heads} attention heads of size {head_dim} in its config.json and projections of "
                f"{self.sizes.query} and {self.sizes.key} rows, which don't fit together; correct num_attention_heads "
                "or head_dim"
            )
        return heads, head_dim

    def rope(self) -> tuple[float, dict[str, Any] | None]:
        """Base and scaling, whether in the places of transformers 4 or 5."""
        parameters = {**self.config.part("rope_scaling").found, **self.config.part("rope_parameters").found}
        nested = Config(self.path, parameters)
        theta = self.config.number("rope_theta", nested.number("rope_theta", 10000.0))
        parameters.pop("rope_theta", None)
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        return theta, None if kind == "default" else parameters


def open_source(files: HeadFiles, dialect: Dialect) -> EagleSource:
    """Raises LoadError if a tensor without which there is no head is missing."""
    whole = Config(files.path, files.config)
    names = {eagle_name(name): name for name in files.shapes if not _is_left_aside(name)}
    shapes = {name: files.shapes[original] for name, original in names.items()}
    ignored = [prefix for prefix in LEFT_ASIDE if any(name.startswith(prefix) for name in files.shapes)]
    return EagleSource(
        path=files.path,
        dialect=dialect,
        generation=1 if dialect in (Dialect.SAFEAILAB_EAGLE1, Dialect.HASS) else 3,
        whole=whole,
        config=_layer_config(whole, dialect),
        names=names,
        shapes=shapes,
        sizes=_sizes(files.path, shapes),
        notes=tuple(f"{prefix}* is left aside" for prefix in ignored),
    )


def _is_left_aside(name: str) -> bool:
    return name.startswith(LEFT_ASIDE) or name.endswith("rotary_emb.inv_freq")


def _layer_config(whole: Config, dialect: Dialect) -> Config:
    if dialect is Dialect.SPECULATORS:
        return whole.part("transformer_layer_config")
    return whole.part("model") if whole.found.get("model_type") == "eagle" and whole.has("model") else whole


def _sizes(path: str, shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
    needed = {
        name: shapes.get(f"{name}.weight")
        for name in ("fc", "layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj", "layers.0.mlp.gate_proj")
    }
    if lost := [name for name, shape in needed.items() if shape is None or len(shape) != 2]:
        raise LoadError(f"{path} lacks the tensor {lost[0]}.weight; download it again")
    fused, query, key, gate = (shape or (0, 0) for shape in needed.values())
    indices = {int(name.split(".")[1]) for name in shapes if name.startswith("layers.")}
    return Sizes(fused[0], fused[1], max(indices) + 1, query[0], key[0], gate[0])
