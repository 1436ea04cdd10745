"""Any Hugging Face causal LM as a `Decoder`, without a line of vendored modelling code.

All rows of a pass go through the model as one sequence; position ids and our attention, plugged in through
transformers' `AttentionInterface`, make them the ragged batch they are. At load a probe compares the model's own logits
with ours: a model whose layers bypass the interface (ALiBi, recurrent state, attention sinks) is refused instead of
being silently wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from foredraft.errors import LoadError
from foredraft.target.attention import FlatAttention
from foredraft.target.decoder import Decoder, Hidden
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import CacheShape, KVCache
from foredraft.target.pair_layer import PairLayer, PairWay

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["StockDecoder", "exact_length"]

ATTENTION = "foredraft"
KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention"}
PROBE_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


class StockDecoder:
    """A transformers model behind the decoder protocol. Raises LoadError, with the model type and the reason, if it
    can't work.

    `chosen_because` is the clause that says why the lean decoder doesn't run instead.
    """

    def __init__(self, model: PreTrainedModel, *, chosen_because: str = "") -> None:
        _refuse_unsupported(model)
        self.model = model
        self.chosen_because = chosen_because
        self.config = model.config.get_text_config()
        self._head = _output_head(model)
        self.vocab_size = self._head.weight.shape[0]
        self.hidden_size = int(self.config.hidden_size)
        self.cache_dtype = model.dtype
        self.weight_format = str(model.dtype).removeprefix("torch.")
        self.way_name = "transformers"
        self.own_threads = False
        self._base = model.base_model
        self._attentions = [module for module in model.modules() if getattr(module, "layer_idx", None) is not None]
        self.cache_shape = self._probe()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.inference_mode()
    def forward(self, flat: FlatPass, cache: KVCache, taps: tuple[int, ...] = ()) -> Hidden:
        """Run the layers over all rows, writing keys and values to `cache`."""
        attention = FlatAttention(flat, cache)
        for module in self._attentions:
            object.__setattr__(module, "flat_attention", attention)
        captured: dict[int, Tensor] = {}
        hooks = [
            self._layers[tap].register_forward_pre_hook(_capture(captured, tap)) for tap in sorted(set(taps) - {-1})
        ]
        try:
            output = self._base(
                input_ids=flat.tokens.unsqueeze(0),
                position_ids=flat.positions.unsqueeze(0),
                attention_mask=torch.ones_like(flat.tokens).unsqueeze(0),  # some families warn without one
                use_cache=False,
            )
        finally:
            for hook in hooks:
                hook.remove()
        last = captured[-1] = output.last_hidden_state[0]
        return Hidden(last, torch.stack([captured[tap] for tap in taps], dim=1) if taps else None)

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """[R, H] after the final norm -> logits [R, V], with the scaling or capping that some families apply."""
        logits: Tensor = self._head(hidden.to(self._head.weight.dtype))
        if scale := getattr(self.config, "logit_scale", None):  # Cohere
            logits = logits * scale
        if scale := getattr(self.config, "logits_scaling", None):  # Granite
            logits = logits / scale
        if cap := getattr(self.config, "final_logit_softcapping", None):  # Gemma 2
            logits = cap * torch.tanh(logits / cap)
        return logits

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        """Ids [T] -> rows [T, E] of the embedding table, without the scaling that some families apply to them."""
        return nn.functional.embedding(tokens.to(self.device), self._embedding)

    def adopt(self, linear: nn.Linear) -> nn.Module:
        """The layer as it is."""
        return linear

    def adopt_layer(self, layer: PairLayer) -> PairWay | None:
        """There are no kernels here."""
        return None

    def truncated(self, layers: int) -> StockDecoder:
        """The first `layers` layers with the final norm and head; every weight is shared."""
        total = self.config.num_hidden_layers
        if not 1 <= layers <= total:
            raise LoadError(f"target:{layers} asks for {layers} of the target's {total} layers; give 1 to {total}.")
        config = copy.deepcopy(self.model.config)
        config.get_text_config().num_hidden_layers = layers
        if getattr(config.get_text_config(), "layer_types", None):
            config.get_text_config().layer_types = config.get_text_config().layer_types[:layers]
        with torch.device("meta"):
            small = type(self.model)(config)
        try:
            small.load_state_dict(self.model.state_dict(), strict=False, assign=True)
        except RuntimeError as error:
            raise LoadError(
                f"Models of type {config.model_type} can't be cut to their first {layers} layers."
            ) from error
        small.tie_weights()
        for (name, buffer), (_, own) in zip(
            _shared_buffers(self.model, small), _shared_buffers(small, small), strict=True
        ):
            if own.is_meta:
                module, _, leaf = name.rpartition(".")
                setattr(small.get_submodule(module), leaf, buffer)
        return StockDecoder(small.train(False).requires_grad_(False))

    def companion(self, config: PreTrainedConfig, tensors: Mapping[str, Tensor]) -> Decoder:
        """A Llama-shaped model in plain torch that looks tokens up in this one's embedding table."""
        from foredraft.target.fast_decoder import companion_in_torch

        return companion_in_torch(self._embedding, config, tensors)

    @property
    def _embedding(self) -> Tensor:
        """[V, E] the embedding table."""
        table: nn.Embedding = self.model.get_input_embeddings()  # type: ignore[assignment]
        return table.weight.detach()

    @property
    def _layers(self) -> nn.ModuleList:
        depth = self.config.num_hidden_layers
        lists = (module for module in self._base.modules() if isinstance(module, nn.ModuleList))
        return next(module for module in lists if len(module) == depth)

    def _own_logits(self, tokens: Tensor) -> Tensor:
        everything = torch.ones_like(tokens).unsqueeze(0)
        logits: Tensor = self.model(input_ids=tokens.unsqueeze(0), attention_mask=everything, use_cache=False).logits
        return logits[0]

    @torch.inference_mode()
    def _probe(self) -> CacheShape:
        """Find the cache shape, and compare our logits with the model's own on two sequences packed together."""
        vocabulary = min(self.vocab_size, self.config.vocab_size)
        tokens = [(torch.arange(count) * 7919 + 13 * count) % vocabulary for count in (5, 9)]
        tokens = [part.to(self.device) for part in tokens]
        self.model.set_attn_implementation("eager")
        own = torch.cat([self._own_logits(part) for part in tokens])

        shapes: dict[int, tuple[int, int, int]] = {}
        _register()
        self.model.set_attn_implementation(ATTENTION)
        recorder = _ShapeRecorder(shapes)
        for module in self._attentions:
            object.__setattr__(module, "flat_attention", recorder)
        self._base(
            input_ids=tokens[0].unsqueeze(0), attention_mask=torch.ones_like(tokens[0]).unsqueeze(0), use_cache=False
        )
        kind, depth = self.config.model_type, self.config.num_hidden_layers
        if sorted(shapes) != list(range(depth)):
            raise LoadError(
                f"Models of type {kind} can't be decoded here: {len(shapes)} of {depth} layers route their attention "
                "through transformers' AttentionInterface, and the others would be silently wrong."
            )
        kv_heads, key_dim, value_dim = zip(*(shapes[layer] for layer in range(depth)), strict=True)
        shape = CacheShape(kv_heads, key_dim, value_dim)

        cache = KVCache(shape, slots=2, dtype=self.model.dtype, device=self.device)
        # The second sequence comes in two passes, so that what the first leaves in the cache is tested.
        first, (begun, rest) = tokens[0], tokens[1].split((4, 5))
        places = torch.arange(9, device=self.device)
        opening = FlatPass(begun, places[:4], (Segment(1, 0, 0, 4),))
        packed = FlatPass(
            torch.cat([first, rest]),
            torch.cat([places[:5], places[4:]]),
            (Segment(0, 0, 0, 5), Segment(1, 4, 5, 5)),
        )
        opened, last = self.forward(opening, cache).last, self.forward(packed, cache).last
        ours = self.head(torch.cat([last[:5], opened, last[5:]]))
        gap = (ours.double() - own.double()).abs().max().item() / max(own.double().abs().max().item(), 1e-9)
        if not gap <= PROBE_TOLERANCE[self.model.dtype]:
            raise LoadError(
                f"Models of type {kind} can't be decoded here: logits of packed sequences differ from the model's own "
                f"by {gap:.2g} of their range, so it keeps state or positions that the interface doesn't show."
            )
        return shape


def exact_length(config: object) -> int | None:
    """The longest context in which rotary frequencies don't depend on the batch, or None if they never do.

    "dynamic" and "longrope" switch frequencies by the longest position in the pass, which would make a row depend on
    its neighbours.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    kind = parameters.get("rope_type", "default") if isinstance(parameters, dict) else "default"
    if kind not in ("dynamic", "longrope"):
        return None
    original = parameters.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )
    return int(original or getattr(config, "max_position_embeddings"))  # noqa: B009 - config is duck-typed


class _ShapeRecorder:
    """Stands in for attention while probing: notes each layer's key and value shapes."""

    def __init__(self, shapes: dict[int, tuple[int, int, int]]) -> None:
        self.shapes = shapes

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, **_: object) -> Tensor:
        self.shapes[layer] = (key.shape[1], key.shape[2], value.shape[2])
        return query.new_zeros((query.shape[0], query.shape[1], value.shape[2]))


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, _attention_of_module)
    AttentionMaskInterface.register(ATTENTION, _no_mask)


def _attention_of_module(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """transformers' calling convention: [1, heads, T, d] in, [1, T, heads, d] out; the pass hangs on the module."""
    if s_aux is not None or position_bias is not None:
        what = "attention sinks" if s_aux is not None else "a position bias"
        raise LoadError(f"{type(module).__name__} uses {what}, which this engine doesn't handle.")
    attend: FlatAttention = object.__getattribute__(module, "flat_attention")
    output = attend(
        int(module.layer_idx),  # type: ignore[arg-type]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window=sliding_window,
        softcap=softcap,
    )
    return output.unsqueeze(0), None


def _no_mask(*_: object, **__: object) -> None:
    """Masks are per segment and made by FlatAttention."""
    return None


def _capture(captured: dict[int, Tensor], tap: int):  # type: ignore[no-untyped-def]
    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        captured[tap] = inputs[0][0]

    return hook


def _shared_buffers(source: nn.Module, like: nn.Module) -> list[tuple[str, Tensor]]:
    names = [name for name, _ in like.named_buffers()]
    return [(name, source.get_buffer(name)) for name in names]


def _output_head(model: PreTrainedModel) -> nn.Linear:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(head, nn.Linear):
        raise LoadError(f"{type(model).__name__} has no output head; give a causal language model.")
    return head


def _refuse_unsupported(model: PreTrainedModel) -> None:
    config = model.config.get_text_config()
    kind = config.model_type
    if getattr(model.config, "is_encoder_decoder", False):
        raise LoadError(f"Models of type {kind} are encoder-decoders; give a decoder-only causal language model.")
    strange = set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYER_TYPES
    if strange:
        raise LoadError(
            f"Models of type {kind} have layers of type {', '.join(sorted(strange))}, whose state can't be rolled back "
            "after rejected drafts; only attention layers are supported."
        )
