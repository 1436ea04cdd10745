"""`foredraft generate`: prompts in, text and figures out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import DRAFTING, Cli
from tiny_checkpoint import CONTEXT, save_tiny_checkpoint

from foredraft.engine.outputs import Delta
from foredraft.engine.requests import Choice

SHORT = ("--max-tokens", "24")


def test_text_on_stdout_and_figures_on_stderr(cli: Cli, tiny_checkpoint: Path) -> None:
    done = cli("generate", tiny_checkpoint, "hello", *SHORT)
    assert done.code == 0
    assert len(done.out.rstrip("\n")) >= 20
    assert done.out.endswith("\n")
    assert done.err.count("\n") == 1
    for part in ("24 tokens (limit)", "tokens/s", "acceptance length", "rate", "first token"):
        assert part in done.err


def test_plain_says_nothing_of_acceptance(cli: Cli, tiny_checkpoint: Path) -> None:
    speculative, plain = (cli("generate", tiny_checkpoint, "hello", *SHORT, *extra) for extra in ((), ("--plain",)))
    assert plain.out == speculative.out
    assert "acceptance" not in plain.err


def test_json(cli: Cli, tiny_checkpoint: Path) -> None:
    text = cli("generate", tiny_checkpoint, "hello", *SHORT).out
    done = cli("generate", tiny_checkpoint, "hello", *SHORT, *DRAFTING, "--json", "--logprobs", 2, "--seed", 5)
    assert done.code == 0
    assert done.err == ""
    [output] = done.json["outputs"]
    assert output["text"] + "\n" == text
    assert output["finish_reason"] == "length"
    assert output["stop_reason"] is None
    assert output["seed"] == 5
    assert len(output["token_ids"]) == len(output["drafted"]) == len(output["logprobs"]) == 24
    assert all(
        entry[str(token)]["rank"] == 1 for token, entry in zip(output["token_ids"], output["logprobs"], strict=True)
    )
    assert done.json["prompt"] == "hello"
    numbers = done.json["metrics"]["speculative_decoding"]
    assert numbers["num_accepted_draft_tokens"] == sum(output["drafted"]) > 0
    assert numbers["mean_acceptance_length"] == pytest.approx(24 / numbers["num_spec_steps"])
    assert done.json["output_throughput"] == pytest.approx(24 / done.json["seconds"])
    assert 0 < done.json["time_to_first_token"] <= done.json["seconds"]
    assert (
        cli("generate", tiny_checkpoint, "hello", "--plain", "--json").json["metrics"]["speculative_decoding"] is None
    )


def test_drafted_text_is_marked(cli: Cli, tiny_checkpoint: Path) -> None:
    arguments = ("generate", tiny_checkpoint, "hello", *SHORT, *DRAFTING)
    output = cli(*arguments, "--json").json["outputs"][0]
    shown = cli(*arguments, "--show").out
    assert shown.replace("‹", "").replace("›", "") == output["text"] + "\n"
    marked = sum(len(part.partition("›")[0]) for part in shown.split("‹")[1:])
    assert marked == sum(output["drafted"]) > 0  # one character a token here


def test_chat_template_and_raw(cli: Cli, tiny_checkpoint: Path) -> None:
    def prompt_length(*extra: str) -> int:
        return len(cli("generate", tiny_checkpoint, "hello", *SHORT, "--json", *extra).json["prompt_token_ids"])

    assert prompt_length("--raw") == len("hello")
    assert prompt_length() == len("[user] hello\n[assistant] ")
    assert prompt_length("--system", "Be kind.") == len("[system] Be kind.\n[user] hello\n[assistant] ")


def test_without_a_chat_template_the_prompt_is_continued(cli: Cli, tmp_path: Path) -> None:
    model = save_tiny_checkpoint(tmp_path / "base", chat_template=None)
    assert len(cli("generate", model, "hello", *SHORT, "--json").json["prompt_token_ids"]) == len("hello")
    assert "has no chat template" in cli("generate", model, "hello", "--system", "Be kind.").sentence


@pytest.mark.parametrize(
    ("argument", "from_file", "stdin", "prompt"),
    [
        (None, None, "from stdin\n", "from stdin"),
        ("-", None, "from stdin\n\n", "from stdin\n"),
        ("-", "from a file\n", "from stdin", "from stdin\n\nfrom a file"),
        (None, "from a file\n", "", "from a file"),
        ("question", "from a file\n", "", "from a file\n\nquestion"),
        ("question", None, "", "question"),
    ],
)
def test_where_the_prompt_comes_from(
    argument: str | None,
    from_file: str | None,
    stdin: str,
    prompt: str,
    cli: Cli,
    tiny_checkpoint: Path,
    tmp_path: Path,
) -> None:
    arguments: list[object] = ["generate", tiny_checkpoint, "--max-tokens", 1, "--json"]
    if argument is not None:
        arguments.append(argument)
    if from_file is not None:
        (tmp_path / "prompt.txt").write_text(from_file)
        arguments += ["-f", tmp_path / "prompt.txt"]
    assert cli(*arguments, stdin=stdin).json["prompt"] == prompt


def test_sampling_flags_reach_the_engine(cli: Cli, tiny_checkpoint: Path) -> None:
    def run(*extra: object) -> dict[str, object]:
        return cli("generate", tiny_checkpoint, "hello", *SHORT, "--json", *extra).json["outputs"][0]

    greedy = run()
    text = str(greedy["text"])
    assert run("--temperature", 1, "--seed", 1)["token_ids"] == run("--temperature", 1, "--seed", 1)["token_ids"]
    assert run("--temperature", 1, "--seed", 1)["text"] != run("--temperature", 1, "--seed", 2)["text"] != text
    for neutral in (("--top-k", 1), ("--top-p", 1e-6), ("--min-p", 1)):  # each keeps the likeliest token alone
        assert run("--temperature", 1, "--seed", 1, *neutral)["text"] == text
    for changed in (("--repetition-penalty", 3), ("--presence-penalty", 2), ("--frequency-penalty", 2)):
        assert run(*changed)["text"] != text
    stop = text[5:7]
    stopped = run("--stop", stop)
    assert (stopped["text"], stopped["stop_reason"]) == (text.partition(stop)[0], stop)
    [first, *_] = greedy["token_ids"]  # type: ignore[misc]
    assert run("--stop-token-ids", first)["stop_reason"] == first
    assert run("--stop-token-ids", first, "--min-tokens", 3)["token_ids"] != [first]
    assert run("--logit-bias", f'{{"{first}": -100}}')["token_ids"][0] != first  # type: ignore[index]


def test_the_end_of_text_can_be_ignored(cli: Cli, tiny_checkpoint: Path) -> None:
    arguments = ("generate", tiny_checkpoint, "hello", *SHORT, "--json", "--logit-bias", '{"2": 100}')
    ended = cli(*arguments).json["outputs"][0]
    assert (ended["token_ids"], ended["finish_reason"]) == ([2], "stop")
    assert cli(*arguments, "--ignore-eos").json["outputs"][0]["token_ids"] == [2] * 24


def test_several_answers(cli: Cli, tiny_checkpoint: Path) -> None:
    arguments = ("generate", tiny_checkpoint, "hello", "--n", 3, "--temperature", 1, "--seed", 0, *SHORT)
    texts = [output["text"] for output in cli(*arguments, "--json").json["outputs"]]
    assert len(set(texts)) == 3
    assert cli(*arguments).out == "".join(f"[{index} of 3]\n{text}\n" for index, text in enumerate(texts, start=1))


def test_max_tokens_default_is_what_fits(cli: Cli, tiny_checkpoint: Path) -> None:
    def length(*extra: object) -> int:
        result = cli("generate", tiny_checkpoint, "hello", "--ignore-eos", "--json", *extra).json
        return len(result["prompt_token_ids"]) + len(result["outputs"][0]["token_ids"])

    assert length("--plain") == CONTEXT
    assert CONTEXT - 16 <= length() <= CONTEXT  # drafts need room in the cache, too
    assert length("--kv-cache-memory-bytes", "40k") < CONTEXT / 2
    assert length("--max-model-len", 100, "--plain") == 100


def test_compare(cli: Cli, tiny_checkpoint: Path) -> None:
    done = cli("generate", tiny_checkpoint, "hello", *SHORT, "--compare")
    assert done.code == 0
    assert [line.partition(" ")[0] for line in done.err.splitlines()[:2]] == ["plain", "speculative"]
    assert done.err.endswith("identical: yes\n")
    both = cli("generate", tiny_checkpoint, "hello", *SHORT, "--compare", "--json", "--temperature", 1, "--n", 2).json
    assert both["identical"] is True
    assert both["difference"] is None
    assert [one["token_ids"] for one in both["outputs"]] == [one["token_ids"] for one in both["plain"]["outputs"]]
    assert both["speedup"] == pytest.approx(both["output_throughput"] / both["plain"]["output_throughput"])


def test_a_difference_is_shown_and_fails(cli: Cli, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.engine import engine

    real = engine.verify

    def keep_the_draft(tree, picks):  # type: ignore[no-untyped-def]
        """A verification that accepts whatever was drafted first."""
        picks = picks.clone()
        if tree.width:
            picks[:, 0] = tree.tokens[:, 0].where(tree.tokens[:, 0] >= 0, picks[:, 0])
        return real(tree, picks)

    monkeypatch.setattr(engine, "verify", keep_the_draft)
    done = cli("generate", tiny_checkpoint, "hello", *SHORT, *DRAFTING, "--compare")
    assert done.code == 1
    assert "identical: no, from token" in done.err
    assert all(f"\n  {name}" in done.err for name in ("after", "plain", "speculative"))


def test_a_prediction_is_drafted_from(cli: Cli, tiny_checkpoint: Path, tmp_path: Path) -> None:
    arguments = ("generate", tiny_checkpoint, "hello", *SHORT, "--json")
    text = cli(*arguments, "--plain").json["outputs"][0]["text"]
    (tmp_path / "expected.txt").write_text(text)
    config = '{"method": "prediction", "controller": "off"}'
    result = cli(*arguments, "--prediction", tmp_path / "expected.txt", "-sc", config).json
    assert result["outputs"][0]["text"] == text
    assert result["metrics"]["speculative_decoding"]["mean_acceptance_length"] > 3
    assert (
        "acceptance" in cli(*arguments[:-1], "--prediction", tmp_path / "expected.txt").err
    )  # the default method then


@pytest.mark.parametrize("flags", [(), ("--json",), ("--compare",)])
def test_an_answer_that_breaks_off_is_an_error(
    cli: Cli, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """A truncated one must not pass for the whole."""
    original = Choice.extend

    def extend(choice: Choice, *rest: Any) -> Delta:
        if len(choice.output.token_ids) > 3:
            raise ValueError("the tokenizer is broken")
        return original(choice, *rest)

    monkeypatch.setattr(Choice, "extend", extend)
    done = cli("generate", tiny_checkpoint, "hello", *SHORT, *flags)
    assert done.code not in (0, 2)
    assert done.err.startswith("Error: ValueError: the tokenizer is broken.")
    assert done.err.count("\n") == 1
    assert "--json" not in flags or done.out == ""
