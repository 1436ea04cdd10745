"""GGUF files: the model that comes out has exactly the values and the text splitting that went in."""

from __future__ import annotations

import json
import os
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import ARCHITECTURES, finish, rewrite, write_model, write_vocabulary
from transformers import AutoModelForCausalLM

from foredraft.errors import LoadError
from foredraft.target.gguf import convert_gguf, gguf_tokenizer
from foredraft.target.gguf_file import KINDS, read_gguf, tensor_slices, weight_kind
from foredraft.target.loading import load_target

MATRIX_KINDS = [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q4_K, Kind.Q6_K]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def assert_same_model(loaded: torch.nn.Module, expected: torch.nn.Module) -> None:
    ours, theirs = loaded.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    tokens = torch.arange(3, 43)[None]  # longer than every sliding window
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, expected(tokens).logits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architecture_loads_as_the_model_it_was_written_from(architecture: str, tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf", architecture)
    loaded = load_target(str(written.path))
    # Gemma's norms are stored as weight + 1, which rounds; every other value comes back bit for bit.
    if architecture.startswith("gemma"):
        tokens = torch.arange(3, 43)[None]
        with torch.no_grad():
            got, wanted = loaded.model(tokens).logits, written.expected(tokens).logits
        assert torch.allclose(got, wanted, atol=2e-4)
    else:
        assert_same_model(loaded.model, written.expected)
    assert loaded.weight_format == "gguf-f32"
    assert loaded.max_model_len == 128


@pytest.mark.parametrize("kind", MATRIX_KINDS, ids=lambda kind: kind.name)
def test_every_storage_kind_loads_the_values_its_blocks_stand_for(kind: Kind, tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf", "llama", kind)
    loaded = load_target(str(written.path), dtype="float32")
    assert_same_model(loaded.model, written.expected)
    assert loaded.weight_format == f"gguf-{kind.name.lower()}"


@pytest.mark.parametrize(
    "changes", [{"attention_bias": True}, {"mlp_bias": True}, {"tie_word_embeddings": True}], ids=str
)
def test_variants_of_llama(changes: dict[str, object], tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf", "llama", **changes)
    assert_same_model(load_target(str(written.path)).model, written.expected)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes_of_a_converted_file(architecture: str, dtype: str, tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf", architecture)
    loaded = load_target(str(written.path), dtype=dtype)
    config = written.expected.config
    expected = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation="eager").eval()
    expected.load_state_dict(written.expected.state_dict())  # `to` would round the rotary frequencies as well
    assert_same_model(loaded.model, expected)


def test_auto_dtype_keeps_16_bit_files_in_16_bits_and_widens_quantised_ones(tmp_path: Path) -> None:
    half, quantised = write_model(tmp_path / "h.gguf", kind=Kind.F16), write_model(tmp_path / "q.gguf", kind=Kind.Q8_0)
    assert load_target(str(half.path)).model.dtype == torch.bfloat16
    assert load_target(str(quantised.path)).model.dtype == torch.float32


def test_our_table_of_kinds_is_the_packages() -> None:
    for number, (name, block, size) in KINDS.items():
        assert Kind(number).name == name
        assert gguf.GGML_QUANT_SIZES[Kind(number)] == (block, size)


@pytest.mark.parametrize("number", KINDS)
def test_slices_add_up_to_the_packages_dequantiser(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Kind(number)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = 7, 256
    blocks = np.random.default_rng(number).integers(0, 60, (rows, columns // block * size), dtype=np.uint8)
    if kind in (Kind.F32, Kind.F16):
        blocks = blocks.view({Kind.F32: np.float32, Kind.F16: np.float16}[kind])
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", blocks, raw_dtype=None if blocks.dtype != np.uint8 else kind)
    finish(writer)
    file = read_gguf(tmp_path / "m.gguf")
    monkeypatch.setattr("foredraft.target.gguf_file.SLICE_ELEMENTS", 2 * columns)
    slices = list(tensor_slices(file, file.tensors["w"]))
    assert [len(part) for part in slices] == [2, 2, 2, 1]
    assert np.array_equal(np.concatenate(slices), gguf.dequantize(blocks, kind), equal_nan=True)
    assert weight_kind(file) == kind.name.lower()


def test_llama3_rotary_factors_become_the_scaling_they_came_from(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    shape = {
        "head_dim": 64,
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
    }
    base = 500000.0
    config = {**shape, "rope_theta": base, "rope_scaling": scaling}
    expected = AutoModelForCausalLM.from_config(write_model(tmp_path / "x.gguf", **config).expected.config)
    factors = base ** -(torch.arange(0, 64, 2) / 64) / expected.model.rotary_emb.inv_freq
    assert factors.min() == pytest.approx(1.0)
    assert factors.max() == pytest.approx(8.0)
    rewrite(
        tmp_path / "x.gguf", tmp_path / "m.gguf", {"llama.rope.freq_base": base}, {"rope_freqs.weight": factors.numpy()}
    )
    loaded = load_target(str(tmp_path / "m.gguf")).model
    assert torch.allclose(loaded.model.rotary_emb.inv_freq, expected.model.rotary_emb.inv_freq)
    rewrite(tmp_path / "m.gguf", tmp_path / "odd.gguf", {}, {"rope_freqs.weight": factors.numpy() ** 1.5})
    with pytest.raises(LoadError, match="rotary factors that aren't Llama 3's"):
        load_target(str(tmp_path / "odd.gguf"))


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 64},
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
        ),
    ],
    ids=["linear", "yarn"],
)
def test_position_scaling_is_kept(settings: dict[str, object], wanted: dict[str, object], tmp_path: Path) -> None:
    written = write_model(tmp_path / "x.gguf", "qwen2")
    rewrite(written.path, tmp_path / "m.gguf", {f"qwen2.{key}": value for key, value in settings.items()}, {})
    found = load_target(str(tmp_path / "m.gguf")).model.config.rope_parameters
    assert wanted.items() <= found.items()
    assert found["rope_theta"] == 20000.0


# ---- the cache ----


def test_a_file_is_converted_once_whatever_it_is_called(tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf")
    folder = convert_gguf(written.path, torch.float32)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert convert_gguf(written.path.rename(tmp_path / "other.gguf"), torch.float32) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp


def test_conversions_at_the_same_time_do_each_other_no_harm(tmp_path: Path, own_cache: Path) -> None:
    written = write_model(tmp_path / "m.gguf")
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: convert_gguf(written.path, torch.float32), range(4)))
    assert len(set(folders)) == 1
    assert list((own_cache / "gguf").iterdir()) == folders[:1]
    assert_same_model(load_target(str(written.path)).model, written.expected)


def test_a_changed_file_is_converted_again(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf").path
    first = load_target(str(path))
    data = bytearray(path.read_bytes())
    data[-4:] = struct.pack("<f", 0.123)
    path.write_bytes(data)
    second = load_target(str(path))
    assert second.path != first.path
    assert second.fingerprint != first.fingerprint


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "manifest"])
def test_a_damaged_conversion_is_noticed_and_rebuilt(damage: str, tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf")
    weights = convert_gguf(written.path, torch.float32) / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "truncate":
        os.truncate(weights, len(whole) // 2)
    elif damage == "flip":
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "delete":
        (weights.parent / "tokenizer.json").unlink()
    else:
        (weights.parent / "manifest.json").write_text("{")
    assert_same_model(load_target(str(written.path)).model, written.expected)
    assert weights.read_bytes() == whole


def test_a_copied_cache_is_recognised_by_its_content(tmp_path: Path, own_cache: Path) -> None:
    written = write_model(tmp_path / "m.gguf")
    folder = convert_gguf(written.path, torch.float32)
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied, copy_function=shutil.copy)
    shutil.rmtree(folder)
    copied.rename(folder)
    inode = (folder / "model.safetensors").stat().st_ino
    assert convert_gguf(written.path, torch.float32) == folder
    assert (folder / "model.safetensors").stat().st_ino == inode


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path: Path, own_cache: Path) -> None:
    path = write_model(tmp_path / "x.gguf").path
    rewrite(path, tmp_path / "m.gguf", {}, {"blk.0.strange.weight": np.zeros(8, np.float32)})
    with pytest.raises(LoadError, match=r"'blk\.0\.strange\.weight', unknown to LlamaForCausalLM"):
        convert_gguf(tmp_path / "m.gguf", torch.float32)
    assert list((own_cache / "gguf").iterdir()) == []


def test_an_unwritable_cache_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "m.gguf").path
    (tmp_path / "taken").write_text("a file, not a folder")
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "taken"))
    with pytest.raises(LoadError, match=r"can't be written .*set FOREDRAFT_CACHE"):
        load_target(str(path))


def test_converted_weights_can_be_mapped_tensor_by_tensor(tmp_path: Path) -> None:
    from safetensors import safe_open

    written = write_model(tmp_path / "m.gguf", kind=Kind.Q4_1)
    loaded = load_target(str(written.path))
    with safe_open(loaded.path / "model.safetensors", "pt") as weights:
        name = "model.layers.1.self_attn.q_proj.weight"
        assert torch.equal(weights.get_tensor(name), written.expected.get_parameter(name))
    header = (loaded.path / "model.safetensors").read_bytes()[:8]
    assert (8 + int.from_bytes(header, "little")) % 64 == 0


# ---- files that can't be loaded ----


@pytest.mark.parametrize("keep", [0, 3, 20, 100, 2000, 0.5, 0.99, -1])
def test_a_file_cut_off_anywhere_is_one_sentence(keep: float, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf").path
    size = path.stat().st_size
    os.truncate(path, size - 1 if keep == -1 else int(keep * size) if isinstance(keep, float) else keep)
    with pytest.raises(LoadError, match=r"(cut off|not a GGUF file).*download it again") as caught:
        load_target(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_damaged_header_never_raises_anything_else(tmp_path: Path) -> None:
    """Every byte of the first 600 in turn is overwritten: the file loads, or one LoadError says why not."""
    path = write_model(tmp_path / "m.gguf").path
    data = path.read_bytes()
    refused = 0
    for position in range(4, 600, 3):
        broken = bytearray(data)
        broken[position] ^= 0xFF
        (tmp_path / "broken.gguf").write_bytes(broken)
        try:
            gguf_tokenizer(tmp_path / "broken.gguf")
        except LoadError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba', which foredraft reads from safetensors only"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.dimension_count": 8}, "rotates only a part of each head"),
        ({"llama.rope.scaling.type": "longrope"}, "scales positions by 'longrope'"),
        ({"llama.block_count": None}, "llama.block_count is None where one positive number is needed"),
        ({"llama.feed_forward_length": [96, 64]}, "llama.feed_forward_length differs between layers"),
        ({"split.count": 3}, "one of 3 parts.*gguf-split --merge"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer of kind 'bert'"),
        ({"tokenizer.ggml.pre": "martian"}, "splits text by 'martian'.*llama-bpe"),
        ({"tokenizer.ggml.pre": None}, "splits text by None"),
        ({"tokenizer.ggml.merges": None}, "holds no merges"),
        ({"tokenizer.ggml.tokens": None}, "holds no vocabulary"),
        ({"llama.block_count": 3}, "lacks 9 of the model's weights, like 'model.layers.2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_read_is_refused_by_name(settings: dict[str, object], sentence: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "x.gguf").path
    rewrite(source, tmp_path / "m.gguf", dict(settings), {})
    with pytest.raises(LoadError, match=sentence) as caught:
        load_target(str(tmp_path / "m.gguf"))
    assert "\n" not in str(caught.value)


def test_other_versions_byte_orders_and_kinds_are_refused_by_name(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf").path
    data = path.read_bytes()
    for version, name in ((struct.pack("<I", 1), "GGUF version 1"), (struct.pack(">I", 3), "big-endian")):
        path.write_bytes(data[:4] + version + data[8:])
        with pytest.raises(LoadError, match=name):
            read_gguf(path)
    entry = data.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    path.write_bytes(data[:entry] + struct.pack("<I", 39) + data[entry + 4 :])
    with pytest.raises(LoadError, match=r"'output_norm\.weight' as ggml type 39"):
        read_gguf(path)


def test_a_file_without_weights_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    write_vocabulary(writer, 300)
    finish(writer)
    with pytest.raises(LoadError, match="holds no weights, only metadata"):
        load_target(str(tmp_path / "vocabulary.gguf"))


def test_the_converted_folder_is_an_ordinary_checkpoint(tmp_path: Path) -> None:
    written = write_model(tmp_path / "m.gguf", kind=Kind.Q8_0)
    folder = convert_gguf(written.path, torch.float32)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    assert_same_model(AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager"), written.expected)
