"""Builds an EAGLE head of any generation from a checkpoint in any dialect.

Sizes are read off the tensors, since configurations leave out or misstate them; the configuration decides only what
tensors can't tell. The tapped layers become boundaries here, whatever the file's convention is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from foredraft.errors import LoadError
from foredraft.heads.config import Config
from foredraft.heads.dialects import eagle_name
from foredraft.heads.draft_vocabulary import read_draft_ids
from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.heads.files import HeadFiles
from foredraft.heads.fill import fill
from foredraft.heads.info import Dialect, Doubt, HeadInfo, TargetFacts
from foredraft.heads.taps import tapped_boundaries

__all__ = ["read_eagle"]

VOCABULARY_TENSORS = ("d2t", "t2d", "token_map")
LEFT_ASIDE = ("verifier_lm_head.", "verifier_norm.", "parallel_draft_heads.")
CONVENTION_KEY = "aux_layer_convention"  # only foredraft's own exports have it, and they mean what they say
LLAMA_HEADS, QWEN3_HEAD_DIM = 32, 128  # what transformers assumes where a configuration is silent


class Sizes(NamedTuple):
    """What the tensors' shapes say."""

    hidden: int
    fc_width: int
    layers: int
    query: int
    key: int
    intermediate: int


def read_eagle(
    files: HeadFiles,
    dialect: Dialect,
    target: TargetFacts,
    *,
    aux_layers: tuple[int, ...] | None = None,
    norm_output: bool | None = None,
    norm_before_residual: bool | None = None,
) -> tuple[EagleHead, HeadInfo]:
    """The keywords override the file. Raises LoadError, naming what is missing or wrong."""
    whole = Config(files.path, files.config)
    config = _layer_config(whole, dialect)
    theirs = {eagle_name(name): name for name in files.shapes if not _left_aside(name)}
    shapes = {name: files.shapes[original] for name, original in theirs.items()}
    sizes = _sizes(files.path, shapes)
    generation: Literal[1, 3] = 1 if dialect in (Dialect.SAFEAILAB_EAGLE1, Dialect.HASS) else 3
    notes: list[str] = []
    doubts: list[Doubt] = []
    table, output_layer = shapes.get("embed_tokens.weight"), shapes.get("lm_head.weight")
    vocab_size = _vocab_size(files.path, config, shapes, target)
    narrowed = shapes.get("d2t") or shapes.get("token_map")
    listed = config.whole("draft_vocab_size") or whole.whole("draft_vocab_size")
    draft_vocab_size = output_layer[0] if output_layer else narrowed[0] if narrowed else listed or vocab_size
    target_hidden = whole.whole("target_hidden_size") or config.whole("target_hidden_size")
    target_hidden = target_hidden or (sizes.hidden if generation == 1 else _target_hidden(sizes, target, shapes))
    if generation == 3:
        layers, known = tapped_boundaries(
            whole, config, dialect, sizes.fc_width, target_hidden, target.layers, given=aux_layers
        )
        notes += [] if known else ["the tapped layers aren't in the file: the target's default ones are assumed"]
    else:
        layers, known = (-1,), True
        if table is not None and target_hidden == sizes.hidden:
            del theirs["embed_tokens.weight"]  # a frozen copy of the target's
            table = None
    heads = config.whole("num_attention_heads") or LLAMA_HEADS
    head_dim = _head_dim(files.path, config, sizes, heads)
    normed = "norm.weight" in shapes
    flags = _flags(whole, config, dialect, generation, normed, notes, doubts)
    if norm_output is not None:
        flags["norm_output"] = norm_output
        doubts = [doubt for doubt in doubts if doubt is not Doubt.NORM_OUTPUT]
    if norm_before_residual is not None:
        flags["norm_before_residual"] = norm_before_residual
        doubts = [doubt for doubt in doubts if doubt is not Doubt.NORM_BEFORE_RESIDUAL]
    theta, scaling = _rope(config)
    tied = output_layer is None and table is not None and config.flag("tie_word_embeddings", False)
    shape = EagleShape(
        generation=generation,
        hidden=sizes.hidden,
        target_hidden=target_hidden,
        heads=heads,
        kv_heads=sizes.key // head_dim,
        head_dim=head_dim,
        intermediate=sizes.intermediate,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        aux_layers=layers,
        layers=sizes.layers,
        epsilon=config.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        max_positions=config.whole("max_position_embeddings") or 2048,
        act=config.text("hidden_act", "silu"),
        fc_bias="fc.bias" in shapes,
        qkv_bias="layers.0.self_attn.q_proj.bias" in shapes,
        qk_norm="layers.0.self_attn.q_norm.weight" in shapes,
        first_norm=generation == 1 and "layers.0.input_layernorm.weight" in shapes,
        fc_norm="fc_norm.0.weight" in shapes,
        norm_before_fc="input_norm.weight" in shapes,
        para_norm="embedding_layernorm.weight" in shapes,
        own_embedding=table is not None,
        output="own" if output_layer else "embedding" if tied else "target",
        **flags,
    )
    if not normed and flags["final_norm"]:
        raise LoadError(f"{files.path} lacks the tensor norm.weight; download it again")
    vocabulary = files.take(theirs[name] for name in VOCABULARY_TENSORS if name in theirs)
    vocabulary = {eagle_name(name): tensor for name, tensor in vocabulary.items()}
    draft_ids = read_draft_ids(files.path, vocabulary, draft_vocab_size, vocab_size)
    weights = {name: original for name, original in theirs.items() if name not in VOCABULARY_TENSORS}
    head = fill(files, lambda: EagleHead(shape, draft_ids), weights)
    notes += [f"{prefix}* is left aside" for prefix in LEFT_ASIDE if any(n.startswith(prefix) for n in files.shapes)]
    info = HeadInfo(
        files.path,
        dialect,
        "eagle" if generation == 1 else "eagle3",
        _claimed_target(whole, shape),
        known,
        tuple(doubts),
        tuple(notes),
    )
    return head, info


def _left_aside(name: str) -> bool:
    return name.startswith(LEFT_ASIDE) or name.endswith("rotary_emb.inv_freq")


def _layer_config(whole: Config, dialect: Dialect) -> Config:
    """The part of the configuration that describes the transformer layer."""
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


def _vocab_size(path: str, config: Config, shapes: Mapping[str, tuple[int, ...]], target: TargetFacts) -> int:
    for name in ("embed_tokens.weight", "t2d"):
        if name in shapes:
            return shapes[name][0]
    stated = config.whole("vocab_size") or target.vocab_size
    if stated is None:
        raise LoadError(f"{path} doesn't say how large the target's vocabulary is; add vocab_size to its config.json")
    return stated


def _target_hidden(sizes: Sizes, target: TargetFacts, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Width of one tapped layer, where the configuration doesn't say."""
    if "fc_norm.0.weight" in shapes:
        return shapes["fc_norm.0.weight"][0]
    if sizes.fc_width % sizes.hidden == 0:
        return sizes.hidden
    return target.hidden if target.hidden and sizes.fc_width % target.hidden == 0 else sizes.fc_width // 3


def _head_dim(path: str, config: Config, sizes: Sizes, heads: int) -> int:
    stated = config.whole("head_dim") or (QWEN3_HEAD_DIM if config.found.get("model_type") == "qwen3" else None)
    head_dim = stated or sizes.query // heads
    if head_dim * heads != sizes.query or sizes.key % head_dim:
        raise LoadError(
            f"{path} has {heads} attention heads of size {head_dim} in its config.json and projections of "
            f"{sizes.query} and {sizes.key} rows, which don't fit together; correct num_attention_heads or head_dim"
        )
    return head_dim


def _flags(
    whole: Config,
    config: Config,
    dialect: Dialect,
    generation: int,
    normed: bool,
    notes: list[str],
    doubts: list[Doubt],
) -> dict[str, Any]:
    """norm_before_residual, norm_output and final_norm; adds to `notes` and `doubts` where the file is unclear."""
    if generation == 1:
        return {"norm_before_residual": False, "norm_output": False, "final_norm": normed}
    source = whole if whole.has("norm_before_residual") else config
    before_residual = source.flag("norm_before_residual", False)
    if dialect is Dialect.SPECULATORS and not source.has("norm_before_residual"):
        notes.append("norm_before_residual is missing: false is assumed, and readers differ on it")
        doubts.append(Doubt.NORM_BEFORE_RESIDUAL)
    source = whole if whole.has("norm_output") else config
    output = source.flag("norm_output", False)
    if dialect is Dialect.SPECFORGE and source.has("norm_output") and not whole.has(CONVENTION_KEY):
        # until SpecForge PR #879 the key said whether the output layer sees a normalised state
        doubts.append(Doubt.NORM_OUTPUT if output else Doubt.FINAL_NORM)
        notes.append("norm_output has had two meanings in SpecForge: feeding back the normalised state is assumed")
    return {"norm_before_residual": before_residual, "norm_output": output, "final_norm": True}


def _rope(config: Config) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling, whether in the places of transformers 4 or 5."""
    parameters = {**config.part("rope_scaling").found, **config.part("rope_parameters").found}
    nested = Config(config.path, parameters)
    theta = config.number("rope_theta", nested.number("rope_theta", 10000.0))
    parameters.pop("rope_theta", None)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    return theta, None if kind == "default" else parameters


def _claimed_target(whole: Config, shape: EagleShape) -> TargetFacts:
    ours = TargetFacts.from_json(whole.part("foredraft").found.get("target"))
    verifier = whole.part("speculators_config").part("verifier").found.get("name_or_path")
    name = ours.name or (verifier if isinstance(verifier, str) else "")
    return TargetFacts(name, ours.layers, shape.target_hidden, shape.vocab_size, ours.tokenizer)
