"""Builds an EAGLE head of any generation from a checkpoint in any dialect.

The tapped layers become boundaries here, whatever the file's convention is.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from foredraft.heads.dialects import eagle_name
from foredraft.heads.draft_vocabulary import read_draft_ids
from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.heads.eagle_norms import Norms, read_norms
from foredraft.heads.eagle_source import EagleSource, open_source
from foredraft.heads.files import HeadFiles
from foredraft.heads.fill import fill
from foredraft.heads.info import Dialect, HeadInfo, TargetFacts
from foredraft.heads.taps import tapped_boundaries

__all__ = ["read_eagle"]

TABLE = "embed_tokens.weight"
VOCABULARY_TENSORS = ("d2t", "t2d", "token_map")


class Taps(NamedTuple):
    """The target's layers that the head reads; not `known` if they only follow from the target's number of layers."""

    layers: tuple[int, ...]
    known: bool


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
    source = open_source(files, dialect)
    vocab_size, target_hidden = source.vocab_size(target), source.target_hidden(target)
    taps = _taps(source, target_hidden, target, aux_layers)
    norms = read_norms(source).overridden(output=norm_output, before_residual=norm_before_residual)
    shape = _shape(source, vocab_size, target_hidden, taps, norms)
    assumed = () if taps.known else ("the tapped layers aren't in the file: the target's default ones are assumed",)
    info = HeadInfo(
        files.path,
        dialect,
        "eagle" if source.generation == 1 else "eagle3",
        _claimed_target(source, shape),
        taps.known,
        norms.doubts,
        (*assumed, *norms.notes, *source.notes),
    )
    return _filled(files, source, shape), info


def _taps(source: EagleSource, target_hidden: int, target: TargetFacts, given: tuple[int, ...] | None) -> Taps:
    if source.generation == 1:
        return Taps((-1,), True)
    return Taps(
        *tapped_boundaries(
            source.whole,
            source.config,
            source.dialect,
            source.sizes.fc_width,
            target_hidden,
            target.layers,
            given=given,
        )
    )


def _shape(source: EagleSource, vocab_size: int, target_hidden: int, taps: Taps, norms: Norms) -> EagleShape:
    sizes, shapes, config = source.sizes, source.shapes, source.config
    heads, head_dim = source.attention()
    theta, scaling = source.rope()
    own_embedding = TABLE in shapes and not _copies_table(source, target_hidden)
    return EagleShape(
        generation=source.generation,
        hidden=sizes.hidden,
        target_hidden=target_hidden,
        heads=heads,
        kv_heads=sizes.key // head_dim,
        head_dim=head_dim,
        intermediate=sizes.intermediate,
        vocab_size=vocab_size,
        draft_vocab_size=source.draft_vocab_size(vocab_size),
        aux_layers=taps.layers,
        layers=sizes.layers,
        epsilon=config.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        max_positions=config.whole("max_position_embeddings") or 2048,
        act=config.text("hidden_act", "silu"),
        fc_bias="fc.bias" in shapes,
        qkv_bias="layers.0.self_attn.q_proj.bias" in shapes,
        qk_norm="layers.0.self_attn.q_norm.weight" in shapes,
        first_norm=source.generation == 1 and "layers.0.input_layernorm.weight" in shapes,
        fc_norm="fc_norm.0.weight" in shapes,
        norm_before_fc="input_norm.weight" in shapes,
        para_norm="embedding_layernorm.weight" in shapes,
        norm_before_residual=norms.before_residual,
        norm_output=norms.output,
        final_norm=norms.final,
        own_embedding=own_embedding,
        output=_output(source, own_embedding),
    )


def _copies_table(source: EagleSource, target_hidden: int) -> bool:
    """Whether the embedding table is but a frozen copy of the target's."""
    return source.generation == 1 and target_hidden == source.sizes.hidden


def _output(source: EagleSource, own_embedding: bool) -> Literal["own", "embedding", "target"]:
    """Where the logits come from."""
    if "lm_head.weight" in source.shapes:
        return "own"
    return "embedding" if own_embedding and source.config.flag("tie_word_embeddings", False) else "target"


def _filled(files: HeadFiles, source: EagleSource, shape: EagleShape) -> EagleHead:
    """The head with the file's weights."""
    stored = files.take(source.names[name] for name in VOCABULARY_TENSORS if name in source.names)
    vocabulary = {eagle_name(name): tensor for name, tensor in stored.items()}
    draft_ids = read_draft_ids(files.path, vocabulary, shape.draft_vocab_size, shape.vocab_size)
    unused = (*VOCABULARY_TENSORS, *(() if shape.own_embedding else (TABLE,)))
    weights = {name: original for name, original in source.names.items() if name not in unused}
    return fill(files, lambda: EagleHead(shape, draft_ids), weights)


def _claimed_target(source: EagleSource, shape: EagleShape) -> TargetFacts:
    """What the file says about its target."""
    ours = TargetFacts.from_json(source.whole.part("foredraft").found.get("target"))
    verifier = source.whole.part("speculators_config").part("verifier").found.get("name_or_path")
    name = ours.name or (verifier if isinstance(verifier, str) else "")
    return TargetFacts(name, ours.layers, shape.target_hidden, shape.vocab_size, ours.tokenizer)
