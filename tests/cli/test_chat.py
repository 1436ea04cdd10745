"""`foredraft chat` with piped stdin: one turn a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Cli
from tiny_checkpoint import CONTEXT, save_tiny_checkpoint

SHORT = ("--max-tokens", 8)


def generated(cli: Cli, model: Path, prompt: str) -> str:
    """What the model writes after a prompt, taken literally."""
    text: str = cli("generate", model, "--raw", prompt, *SHORT, "--json").json["outputs"][0]["text"]
    return text


def test_every_line_is_a_turn_and_the_model_sees_all_of_them(cli: Cli, tiny_checkpoint: Path) -> None:
    done = cli("chat", tiny_checkpoint, *SHORT, stdin="one\n\n  two \n")
    first = generated(cli, tiny_checkpoint, "[user] one\n[assistant] ")
    second = generated(cli, tiny_checkpoint, f"[user] one\n[assistant] {first}\n[user] two\n[assistant] ")
    assert done.code == 0
    assert done.out == f"{first}\n{second}\n"
    assert [line.split(" ")[0] for line in done.err.splitlines()] == ["8", "8"]


def test_system_message_and_reset(cli: Cli, tiny_checkpoint: Path) -> None:
    alone = generated(cli, tiny_checkpoint, "[user] hi\n[assistant] ")
    guided = generated(cli, tiny_checkpoint, "[system] Be kind.\n[user] hi\n[assistant] ")
    assert alone != guided
    lines = "hi\n/reset\nhi\n/system  Be kind.\nhi\n/reset\nhi\n/system\nhi\n"
    assert cli("chat", tiny_checkpoint, *SHORT, stdin=lines).out.splitlines() == [alone, alone, guided, guided, alone]
    assert cli("chat", tiny_checkpoint, *SHORT, "--system", "Be kind.", stdin="hi").out == f"{guided}\n"


def test_a_message_of_several_lines(cli: Cli, tiny_checkpoint: Path) -> None:
    expected = generated(cli, tiny_checkpoint, "[user] one\n  two\n[assistant] ")
    for lines in ('"""one\n  two"""\n', '"""\none\n  two\n"""\n'):
        assert cli("chat", tiny_checkpoint, *SHORT, stdin=lines).out == f"{expected}\n"


def test_commands(cli: Cli, tiny_checkpoint: Path) -> None:
    done = cli("chat", tiny_checkpoint, *SHORT, stdin="/help\nhi\nho\n/stats\n/nonsense\n/exit\nnever said\n")
    assert done.code == 0
    assert done.out.count("\n") == 2
    for command in ("/system", "/reset", "/stats", "/exit"):
        assert f"{command} " in done.err
    [stats] = [line for line in done.err.splitlines() if line.startswith("2 answers")]
    assert "16 tokens" in stats
    assert "acceptance length" in stats
    assert f"of {CONTEXT} tokens" in stats
    assert "/nonsense is unknown; /help lists the commands." in done.err


def test_statistics_without_speculation(cli: Cli, tiny_checkpoint: Path) -> None:
    done = cli("chat", tiny_checkpoint, *SHORT, "--plain", stdin="/stats\nhi\n/stats\n")
    assert done.err.startswith(f"0 answers · 0 tokens · context 0 of {CONTEXT} tokens\n")
    assert "acceptance" not in done.err


def test_turns_reuse_what_was_read(cli: Cli, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.engine.engine import Engine

    rows: list[int] = []
    real = Engine.step

    def counted(self: Engine) -> object:
        deltas = real(self)
        rows.append(self.report.prompt_rows)
        return deltas

    monkeypatch.setattr(Engine, "step", counted)
    message = "a long message, to be read only once"
    cli("chat", tiny_checkpoint, *SHORT, stdin=f"{message}\nno\n")
    assert sum(rows) < len(f"[user] {message}\n[assistant] ") + 8 + len("\n[user] no\n[assistant] ")


def test_a_conversation_that_outgrows_the_model(cli: Cli, tiny_checkpoint: Path) -> None:
    done = cli("chat", tiny_checkpoint, *SHORT, stdin=f"hi\n{'a' * 300}\n")
    assert done.code == 2
    assert done.out.count("\n") == 1
    assert "tokens, but the model's context holds 256" in done.err


def test_a_model_that_cannot_chat(cli: Cli, tmp_path: Path) -> None:
    model = save_tiny_checkpoint(tmp_path, chat_template=None)
    assert "has no chat template, so it can't chat" in cli("chat", model, stdin="hi\n").sentence


def test_input_in_another_encoding(cli: Cli, tiny_checkpoint: Path) -> None:
    assert "isn't UTF-8" in cli("chat", tiny_checkpoint, stdin="déjà".encode("latin-1")).sentence


def test_a_block_may_end_with_stdin(cli: Cli, tiny_checkpoint: Path) -> None:
    open_end = cli("chat", tiny_checkpoint, "--temperature", 0, "--max-tokens", 8, stdin='"""one\ntwo\n')
    closed = cli("chat", tiny_checkpoint, "--temperature", 0, "--max-tokens", 8, stdin='"""one\ntwo"""\n')
    assert open_end.code == 0
    assert open_end.out == closed.out != ""


def test_exit_ignores_what_follows(cli: Cli, tiny_checkpoint: Path) -> None:
    ended = cli("chat", tiny_checkpoint, stdin="/exit now\nhello\n")
    assert (ended.code, ended.out) == (0, "")
