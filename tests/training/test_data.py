"""Invented data: reproducible, resumable, without repetitions, and the target's own words."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from material import write_prompts
from tiny_checkpoint import save_tiny_checkpoint

from foredraft.engine.llm import LLM
from foredraft.engine.requests import Choice
from foredraft.errors import ConfigError
from foredraft.training import data
from foredraft.training.data import DataPlan, DataProgress, make_data
from foredraft.training.prompts import read_prompts
from foredraft.training.recipes import TEXT, choose_recipe
from foredraft.training.records import Record, read_records
from foredraft.training.turns import chat_prompt, user_turn
from foredraft.types import SamplingParams

PLAN = DataPlan(tokens=300, max_tokens=12)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(save_tiny_checkpoint(tmp_path_factory.mktemp("model") / "m", context=1024)), max_num_seqs=6)


@pytest.fixture(autouse=True)
def short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "LONGEST_MESSAGE", 10)


def by_item(folder: Path) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for record in read_records(folder):
        found.setdefault(record.item, []).append(replace(record, place=None, start=0))
    return found


class Killed(Exception):  # noqa: N818 - an interruption, not an error
    pass


def test_a_run_that_is_interrupted_goes_on_with_the_same_conversations(llm: LLM, tmp_path: Path) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    make_data(llm, whole, PLAN, lambda _: None)

    def stop(state: DataProgress) -> None:
        if state.tokens > 100:
            raise Killed

    with pytest.raises(Killed):
        make_data(llm, halved, PLAN, stop)
    before = list(read_records(halved))
    assert llm.engine.idle
    done = make_data(llm, halved, PLAN, lambda _: None)
    assert list(read_records(halved))[: len(before)] == before
    assert done.tokens >= 300
    assert done.started == sum(len(record.answer) for record in before)
    expected, found = by_item(whole), by_item(halved)
    shared = expected.keys() & found.keys()
    assert len(shared) > 10
    cut = sum(expected[item] != found[item] for item in shared)
    assert cut <= 1  # the conversation at which the wanted number was reached may lack an answer


def test_answers_are_what_plain_decoding_writes(llm: LLM, tmp_path: Path) -> None:
    make_data(llm, tmp_path, replace(PLAN, temperatures=(0.0,)), lambda _: None)
    records = list(read_records(tmp_path))[:8]
    params = SamplingParams(temperature=0, max_tokens=12)
    for record, output in zip(records, llm.generate([record.prompt for record in records], params), strict=True):
        assert output.outputs[0].token_ids == record.answer


def test_nothing_is_written_twice(llm: LLM, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the same\n" * 5 + "another\n")
    done = make_data(llm, tmp_path / "data", replace(PLAN, prompts=read_prompts(prompts)), lambda _: None)
    found = list(read_records(tmp_path / "data"))
    assert done.records == len(found) == len({tuple(record.prompt) for record in found}) <= 2


def test_prompts_end_before_the_tokens_do(llm: LLM, tmp_path: Path) -> None:
    plan = replace(PLAN, tokens=10_000, prompts=read_prompts(write_prompts(tmp_path, 3)))
    done = make_data(llm, tmp_path / "data", plan, lambda _: None)
    assert done.records == 3
    assert make_data(llm, tmp_path / "data", plan, lambda _: None).decoded == 0


def test_other_settings_do_not_go_on_with_old_data(llm: LLM, tmp_path: Path) -> None:
    make_data(llm, tmp_path, replace(PLAN, tokens=50), lambda _: None)
    with pytest.raises(ConfigError, match="holds data made with seed 0, not 1; take another folder"):
        make_data(llm, tmp_path, replace(PLAN, seed=1), lambda _: None)
    with pytest.raises(ConfigError, match="made with max_tokens 12, not 13"):
        make_data(llm, tmp_path, replace(PLAN, max_tokens=13), lambda _: None)


def test_recipes_cover_every_kind_and_leave_nothing_open() -> None:
    recipes = [choose_recipe(Random(f"0/{item}")) for item in range(3000)]
    kinds = Counter(recipe.kind for recipe in recipes)
    assert set(kinds) == {"chat", "question", "code", "edit", "sums", "summarise", "look-up", "rework", "translate"}
    assert min(kinds.values()) > 60
    for recipe in recipes:
        assert "{" not in recipe.opening
        assert "{" not in (recipe.source or "")
        assert (TEXT in recipe.opening) == (recipe.source is not None)
        assert recipe.open or recipe.opening
    assert len({(recipe.opening, recipe.source) for recipe in recipes}) > 1000
    assert recipes[:50] == [choose_recipe(Random(f"0/{item}")) for item in range(50)]


def test_the_template_is_cut_where_the_user_speaks(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    turn = user_turn(tokenizer, [{"role": "system", "content": "be kind"}], "Why", (2,))
    assert tokenizer.decode(turn.before) == "[system] be kind\n[user] Why"
    assert turn.stop == ("[assistant]",)
    assert turn.stop_ids == (2,)
    asked = chat_prompt(tokenizer, [{"role": "user", "content": "Why?"}])
    assert asked == llm.encode_chat([{"role": "user", "content": "Why?"}])


def test_a_model_without_a_template_needs_prompts(tmp_path: Path) -> None:
    bare = LLM(str(save_tiny_checkpoint(tmp_path / "m", chat_template=None)), max_num_seqs=2)
    with pytest.raises(ConfigError, match="no chat template, so no user can be invented; give prompts with --prompts"):
        make_data(bare, tmp_path / "a", PLAN, lambda _: None)
    plan = replace(PLAN, prompts=read_prompts(write_prompts(tmp_path, 2)))
    make_data(bare, tmp_path / "b", plan, lambda _: None)
    first = next(read_records(tmp_path / "b"))
    assert bare.tokenizer.decode(first.prompt).endswith(("tell me of rain", "tell me of bread"))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("p.jsonl", '{"prompt": "a"}\n{"x": 1}\n', "line 2 of .* has no prompt"),
        ("p.jsonl", "hello\n", "line 1 of .* is no JSON"),
        ("p.txt", "\n\n", "has no prompts"),
        ("p.txt", b"\xff\xfe\n", "isn't UTF-8"),
        ("none.txt", None, "can't be read"),
    ],
)
def test_files_that_hold_no_prompts(tmp_path: Path, name: str, content: str | bytes | None, sentence: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match=sentence):
        read_prompts(path)


def test_prompts_are_read_in_every_usual_shape(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '"plain"\n{"question": "why"}\n{"turns": ["first", "second"]}\n'
        '{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]}\n'
    )
    contents = [[message["content"] for message in prompt] for prompt in read_prompts(path)]
    assert contents == [["plain"], ["why"], ["first"], ["hi"]]


def test_a_request_that_fails_ends_the_run(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of being waited for for ever; the others leave the engine, too."""

    def fail(*_: object) -> None:
        raise ValueError("the tokenizer is broken")

    monkeypatch.setattr(Choice, "extend", fail)
    with pytest.raises(ValueError, match="the tokenizer is broken"):
        make_data(llm, tmp_path, PLAN, lambda _: None)
    assert llm.target.cache.free_slots == llm.target.cache.slots
