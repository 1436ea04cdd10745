"""Structured output: every answer has its form, and speculation changes none of them.

The plain answers are the reference throughout; a tiny random model wants anything but JSON, so that the masks matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from byte_tokenizer import EOS, VOCAB, byte_tokenizer, encode
from drafters import ADVERSARIES, Empty, build_method
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SHAPE, scripted_target

from foredraft.drafters.base import Drafter
from foredraft.engine.engine import Engine
from foredraft.engine.outputs import CompletionOutput
from foredraft.engine.structured import Grammars
from foredraft.errors import ConfigError, RequestError
from foredraft.target.kv_cache import KVCache
from foredraft.target.stock_decoder import StockDecoder
from foredraft.target.target import Target
from foredraft.testing import CapriciousController
from foredraft.types import FinishReason, SamplingParams, StructuredOutput

pytest.importorskip("llguidance")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "stop": {"type": "array", "items": {"enum": ["abc", "abd", 7]}, "maxItems": 3},
        "op": {"type": "boolean"},
    },
    "required": ["name", "stop", "op"],
    "additionalProperties": False,
}
FORMS = {
    "json_object": StructuredOutput("json_object"),
    "json_schema": StructuredOutput("json_schema", json.dumps(PERSON)),
    "regex": StructuredOutput("regex", r"(stop|abc[0-9]{2,5}é! ?){1,3}"),
    "grammar": StructuredOutput("grammar", 'root ::= "(" root ")" | "abc" | [a-f]+ "; " root'),
    "choice": StructuredOutput.one_of(["stop", "stopped early", "日本 world"]),
}
METHODS = ("ngram", "suffix", "recycling", "lookahead", "draft_model")
PROMPT = encode("Tell me.")
Ask = tuple[list[int], SamplingParams]


@cache
def decoder() -> StockDecoder:
    """A random model over the byte tokenizer's vocabulary, in float64, which ends its texts now and then."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = LlamaForCausalLM._from_config(
            LlamaConfig(**{**SHAPE, "vocab_size": VOCAB}), attn_implementation="eager"
        )
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.35 if "embed" in name else 0.25)
    return StockDecoder(model.double().eval().requires_grad_(False))


def target() -> Target:
    own = decoder()
    cache = KVCache(own.cache_shape, 4, own.cache_dtype)
    return Target(own, cache, "bytes", 256, eos_token_ids=(EOS,), tokenizer=byte_tokenizer())


def run(engine: Engine, asks: list[Ask], after_step: Callable[[Engine], None] = lambda _: None) -> list[Any]:
    requests = [engine.add(prompt, params, request_id=str(index)) for index, (prompt, params) in enumerate(asks)]
    for _ in range(2000):
        if engine.idle:
            break
        engine.step()
        engine.check_integrity()
        after_step(engine)
    assert engine.idle, "the engine never comes to an end"
    return [
        [
            (output.token_ids, output.text, output.finish_reason, output.stop_reason)
            for output in request.result().outputs
        ]
        for request in requests
    ]


def asks(temperature: float) -> list[Ask]:
    own = SamplingParams(temperature=temperature, max_tokens=48, seed=11, logit_bias={EOS: 3.0})
    plain = [(PROMPT[: 3 + index], replace(own, structured=form)) for index, form in enumerate(FORMS.values())]
    filtered = replace(own, structured=FORMS["json_schema"], top_p=0.8, top_k=20, repetition_penalty=1.2, n=2)
    return [*plain, (PROMPT, filtered), (PROMPT, own)]


@cache
def plain_answers(temperature: float) -> list[Any]:
    return [run(Engine(target()), [ask])[0] for ask in asks(temperature)]


def drafters(temperature: float) -> dict[str, Callable[[], Drafter]]:
    known = {
        (str(request), choice): tokens
        for request, outputs in enumerate(plain_answers(temperature))
        for choice, (tokens, *_) in enumerate(outputs)
    }
    adversaries = {name: lambda kind=kind: kind(known) for name, kind in ADVERSARIES.items()}
    return {**adversaries, **{name: lambda name=name: build_method(name) for name in METHODS}}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_have_their_form(temperature: float) -> None:
    answers = dict(zip(FORMS, plain_answers(temperature), strict=False))
    complete = {kind: text for kind, [(_, text, reason, _)] in answers.items() if reason is FinishReason.STOP}
    assert "choice" in complete
    assert "json_schema" in complete
    for kind, text in complete.items():
        assert fits(kind, text), f"{kind}: {text!r}"


def fits(kind: str, text: str) -> bool:
    match kind:
        case "json_object":
            return isinstance(json.loads(text), dict)
        case "json_schema":
            value = json.loads(text)
            return (
                list(value) == ["name", "stop", "op"]
                and len(value["name"]) <= 4
                and set(value["stop"]) <= {"abc", "abd", 7}
                and len(value["stop"]) <= 3
                and isinstance(value["op"], bool)
            )
        case "regex":
            return re.fullmatch(FORMS[kind].text, text) is not None
        case "choice":
            return text in json.loads(FORMS[kind].text)
    return re.fullmatch(r"\(*([a-f]+; \(*)*abc\)*", text) is not None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [*ADVERSARIES, *METHODS])
def test_speculation_changes_nothing(name: str, temperature: float) -> None:
    """Chains and trees, right and wrong ones, all requests together, in room for half of them."""
    engine = Engine(target(), drafters(temperature)[name](), num_speculative_tokens=7, kv_room=90)
    assert run(engine, asks(temperature)) == plain_answers(temperature)
    assert engine.scheduler.preemptions


def test_a_controller_without_reason_changes_nothing() -> None:
    engine = Engine(target(), drafters(1.0)["Thicket"](), num_speculative_tokens=7, controller=CapriciousController())
    assert run(engine, asks(1.0)) == plain_answers(1.0)


def test_an_aborted_answer_is_a_beginning_and_the_others_go_on() -> None:
    [_, whole, *_] = plain_answers(1.0)
    for steps in (1, 2, 4):
        engine = Engine(target(), drafters(1.0)["Flaky"](), num_speculative_tokens=5)
        count = iter(range(1, 1000))

        def after_step(engine: Engine, steps: int = steps, count: Any = count) -> None:
            if next(count) == steps:
                engine.abort("1")

        answers = run(engine, asks(1.0), after_step)
        [(tokens, _, reason, _)] = answers.pop(1)
        assert reason is FinishReason.ABORT
        assert whole[0][0][: len(tokens)] == tokens
        assert answers == [answer for index, answer in enumerate(plain_answers(1.0)) if index != 1]


def test_forced_tokens_are_drafts_that_are_always_accepted() -> None:
    """Only the form drafts; the steps saved are the tokens that it left no choice about."""
    params = SamplingParams(temperature=1.0, max_tokens=60, seed=5, structured=FORMS["json_schema"])
    engine = Engine(target(), Empty(), num_speculative_tokens=12)
    request = engine.add(PROMPT, params)
    drafted = accepted = steps = 0
    while not engine.idle:
        engine.step()
        steps += 1
        drafted += sum(engine.report.drafted)
        accepted += sum(engine.report.accepted)
    [output] = request.result().outputs
    assert output.finish_reason is FinishReason.STOP
    assert output.token_ids[-1] == EOS
    assert output.drafted[-1], "the end is forced, too"
    assert drafted == accepted >= len('{"name": "", "stop": [], "op": e}')
    assert steps == len(output.token_ids) - accepted + 1  # after an end there is no bonus token


def test_no_forced_drafts_beyond_the_limits() -> None:
    params = SamplingParams(temperature=0, max_tokens=5, structured=StructuredOutput.one_of(["stopped early"]))
    for cap in (0, 2, None):
        engine = Engine(target(), Empty(), num_speculative_tokens=30)
        [[(tokens, text, reason, _)]] = run(engine, [(PROMPT, replace(params, num_speculative_tokens=cap))])
        assert (text, reason) == ("stopp", FinishReason.LENGTH)
        assert len(tokens) == 5
        assert engine.report.drafted == [{0: 0, 2: 1, None: 4}[cap]]


@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize(
    ("form", "change", "text", "reason", "stop_reason"),
    [
        ("choice", {"ignore_eos": True}, "stop", FinishReason.STOP, "structured output: complete"),
        ("choice", {"min_tokens": 9}, "stop", FinishReason.STOP, "structured output: complete"),
        ("choice", {}, "stop", FinishReason.STOP, None),
        ("empty", {"ignore_eos": True}, "", FinishReason.STOP, "structured output: complete"),
        ("empty", {}, "", FinishReason.STOP, None),
    ],
)
def test_nothing_left_to_pick_ends_the_request(
    form: str, change: dict[str, Any], text: str, reason: FinishReason, stop_reason: str | None, speculative: bool
) -> None:
    forms = {"choice": StructuredOutput.one_of(["stop"]), "empty": StructuredOutput("regex", "")}
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=20, structured=forms[form], **change)
    drafter = ADVERSARIES["RandomTree"]() if speculative else None
    [[answer]] = run(Engine(target(), drafter, num_speculative_tokens=6), [(PROMPT, params)])
    assert answer[1:] == (text, reason, stop_reason)


@pytest.mark.parametrize("speculative", [False, True])
def test_a_form_that_the_vocabulary_cant_write_ends_the_request(speculative: bool) -> None:
    """The model has no logits for the tokenizer's last tokens, "c" among them."""
    vocab_size = encode("c")[0]
    prompt = encode("TELL ME")
    wish = scripted_target(prompt, [5] * 40, vocab_size=vocab_size, tokenizer=byte_tokenizer())
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=20, structured=StructuredOutput("regex", "[ab]{3}c*cd"))
    engine = Engine(wish, ADVERSARIES["RandomTree"]() if speculative else None, num_speculative_tokens=6)
    [[(tokens, text, reason, stop_reason)]] = run(engine, [(prompt, params)])
    assert len(tokens) == len(text) == 3
    assert reason is FinishReason.ABORT
    assert stop_reason == "structured output: no token of the vocabulary fits here"


def test_the_end_is_allowed_only_where_the_form_may_end() -> None:
    """A model that wants to stop at once has to say enough first; it then stops at the first chance."""
    wish = scripted_target(PROMPT, [EOS] * 40, vocab_size=VOCAB, tokenizer=byte_tokenizer())
    params = SamplingParams(temperature=0, max_tokens=30, structured=StructuredOutput("regex", "[ab]{3,9}"))
    for drafter in (None, ADVERSARIES["EndEverywhere"]({("0", 0): [EOS] * 20})):
        engine = Engine(wish, drafter, num_speculative_tokens=6)
        [[(tokens, text, reason, _)]] = run(engine, [(PROMPT, params)])
        assert re.fullmatch("[ab]{3}", text)
        assert tokens[-1] == EOS
        assert reason is FinishReason.STOP


def test_logprobs_are_still_those_of_the_model() -> None:
    params = SamplingParams(temperature=1.0, seed=2, max_tokens=20, logprobs=1, structured=FORMS["json_schema"])
    outputs: list[CompletionOutput] = []
    for drafter in (None, Empty()):
        engine = Engine(target(), drafter, num_speculative_tokens=6)
        request = engine.add(PROMPT, params)
        while not engine.idle:
            engine.step()
        outputs += request.result().outputs
    assert outputs[0].logprobs is not None
    for plain, speculative in zip(outputs[0].logprobs, outputs[1].logprobs or [], strict=True):
        assert plain.keys() == speculative.keys()
        for token, value in plain.items():
            assert value.logprob == pytest.approx(speculative[token].logprob, abs=1e-9)
    first = outputs[0].logprobs[0][outputs[0].token_ids[0]]
    assert first.rank > 1, "the model's own first choice isn't an opening brace"


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json_schema", "{'single': quotes}", "property name"),
        ("json_schema", '{"type": "person"}', "person"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("regex", "(abc", "unclosed group"),
        ("grammar", "no grammar !", "GBNF"),
        ("choice", "[]", "at least one"),
        ("choice", "stop", "Expecting value"),
    ],
)
def test_a_bad_form_is_refused_in_one_sentence(kind: str, text: str, words: str) -> None:
    engine = Engine(target())
    with pytest.raises(RequestError, match=rf"^The {kind} can't be used \(.*{words}[^\n]*\); correct it\.$"):
        engine.add(PROMPT, SamplingParams(structured=StructuredOutput(kind, text)))
    assert engine.idle


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="'yaml'; give one of json_object, json_schema"):
        StructuredOutput("yaml")


def test_without_a_tokenizer_or_llguidance_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(structured=StructuredOutput("json_object"))
    bare = target()
    bare.tokenizer = None
    with pytest.raises(RequestError, match="json_object needs a fast tokenizer, but bytes has no tokenizer"):
        Engine(bare).add(PROMPT, params)
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"install foredraft\[grammar\]"):
        Engine(target()).add(PROMPT, params)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_masks_depend_on_the_path_alone(data: st.DataObject) -> None:
    """Whatever was asked before, in whatever order, a mask is the one that a new matcher gives after reading the same
    tokens; and the drafts asked about leave no trace once other tokens are committed.
    """
    form = data.draw(st.sampled_from(list(FORMS.values())))
    params = SamplingParams(structured=form, min_tokens=data.draw(st.sampled_from([0, 6])))
    matcher = grammars().open(params, len(PROMPT))
    assert matcher is not None
    tokens = list(PROMPT)
    for _ in range(data.draw(st.integers(1, 6))):
        paths = [walk(data, tokens, params) for _ in range(data.draw(st.integers(1, 4)))]
        expected = [fresh_mask(tokens, path, params) for path in paths]
        assert matcher.masks(tokens, paths) == expected
        [onward] = [path for path in paths if path][:1] or [()]
        legal = next((end for end in range(len(onward)) if not allows(tokens, onward[:end], onward[end], params)), None)
        onward = onward if legal is None else onward[:legal]
        if EOS in onward:
            break
        tokens += onward


@cache
def grammars() -> Grammars:
    return Grammars(target())


def walk(data: st.DataObject, tokens: list[int], params: SamplingParams) -> tuple[int, ...]:
    """Up to six tokens, nearly all of them allowed."""
    path: tuple[int, ...] = ()
    for _ in range(data.draw(st.integers(0, 6))):
        mask = fresh_mask(tokens, path, params)
        allowed = [token for token in range(VOCAB) if mask and mask[token // 8] >> token % 8 & 1]
        wild = data.draw(st.integers(0, 9)) == 0
        path = (*path, data.draw(st.sampled_from(range(VOCAB) if wild or not allowed else allowed)))
    return path


def fresh_mask(tokens: list[int], path: tuple[int, ...], params: SamplingParams) -> bytes | None:
    """The same answer from a matcher that has never seen anything else."""
    matcher = grammars().open(params, len(PROMPT))
    assert matcher is not None
    [mask] = matcher.masks([*tokens, *path], [()])
    return mask


def allows(tokens: list[int], path: tuple[int, ...], token: int, params: SamplingParams) -> bool:
    mask = fresh_mask(tokens, path, params)
    return mask is not None and bool(mask[token // 8] >> token % 8 & 1)
