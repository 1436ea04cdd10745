"""`foredraft doctor`: what it reports of both decoders, what it advises, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import write_folder
from command_line import Cli
from models import VOCAB, tiny_decoder
from tiny_checkpoint import save_tiny_checkpoint

from foredraft.bench import advice
from foredraft.bench.advice import advice_on
from foredraft.bench.checkup import Checkup, RowInvariance
from foredraft.bench.hardware import product_invariance
from foredraft.bench.weights import bytes_of_a_pass, weight_bytes
from foredraft.cli.doctor import as_text
from foredraft.target.proof import RowCheck

EXACT = RowCheck(invariant_from=1, trees_exact=True, gap=0.0)
FLAT = {1: 4.0, 4: 4.2, 8: 5.0}
QUICK = {"copy": 20.0, "pass": 18.0}


@pytest.fixture(autouse=True)
def small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.bench.hardware.COPIED_BYTES", 1 << 20)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs here while the tests do."""
    monkeypatch.setattr(advice, "load_average", lambda: 0.5)


@pytest.fixture(scope="module")
def whole_vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose sizes the compiled kernels take."""
    sizes = {"hidden_size": 64, "intermediate_size": 80, "head_dim": 16, "max_position_embeddings": 256}
    return write_folder(tmp_path_factory.mktemp("whole-vectors"), **sizes)


def test_compiled_kernels_are_exact(cli: Cli, whole_vectors: Path) -> None:
    found = cli("doctor", whole_vectors, "--json").json
    assert found["decoder"] == "lean, float32, compiled kernels"
    assert found["guarantee"] == "bit for bit"
    rows = found["row_invariant"]
    assert (rows["passes"], rows["from_rows"], rows["trees"], rows["largest_difference"]) == (True, 1, True, 0.0)
    assert any("--quantization int8 reads a quarter" in clause for clause in found["advice"])


def test_lean_decoder_in_plain_torch(cli: Cli, tiny_checkpoint: Path) -> None:
    found = cli("doctor", tiny_checkpoint, "--json").json
    rows = found["row_invariant"]
    assert (found["guarantee"] == "bit for bit") == rows["passes"] == (rows["largest_difference"] == 0)
    assert rows["products"].keys() == {"float32", "bfloat16"}
    assert list(found["pass_ms"]) == ["1", "4", "8", "16", "32"]
    assert all(milliseconds > 0 for milliseconds in found["pass_ms"].values())
    assert found["cached_tokens"] == 224  # of the model's 256, 32 are for the widest pass
    assert found["bandwidth"]["pass"] > 0
    assert found["bandwidth"]["copy"] > 0
    assert found["decoder"] == "lean, float32, plain torch"
    assert any("head size 8 doesn't fill whole vectors" in clause for clause in found["advice"])


def test_stock_decoder_of_a_short_context(cli: Cli, tmp_path: Path) -> None:
    """Fewer rows and cached tokens than usual, where the model has no room for them."""
    text = cli("doctor", save_tiny_checkpoint(tmp_path / "model", context=20), "--enforce-eager").out
    lines = {line[:12].strip(): line[12:] for line in text.splitlines() if not line.startswith(" ")}
    assert lines["decoder"] == "stock transformers, float32"
    assert lines["guarantee"].startswith("speculation reproduces plain decoding ")
    assert lines["pass"].split() == ["rows", "1", "4", "8", "16"]
    assert "with 4 tokens in the cache" in text
    assert "GB/s" in lines["bandwidth"]
    assert "the stock model runs, since the stock model was asked for" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no/such/model/anywhere",), "no/such/model/anywhere"),
        (("MODEL", "--dtype", "int3"), "dtype 'int3' is unknown"),
        (("MODEL", "--quantization", "int2"), "quantization 'int2' is unknown; use one of int8"),
        (("MODEL", "--quantization", "int8", "--enforce-eager"), "leave out --quantization"),
        (("MODEL", "--device", "abacus"), "device 'abacus' is unknown"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], words: str, cli: Cli, tiny_checkpoint: Path) -> None:
    given = [str(tiny_checkpoint) if argument == "MODEL" else argument for argument in arguments]
    assert words in cli("doctor", *given).sentence


def test_unequal_rows_are_said_in_words() -> None:
    rows = RowInvariance(False, 4, False, 0.03, {"float32": 1, "bfloat16": None})
    found = Checkup("m", "d", 2, 4, [], "up to near ties below 0.06", rows, 256, {1: 5.0, 8: 12.5}, {"copy": 20.0}, [])
    text = as_text(found)
    assert "speculation reproduces plain decoding up to near ties below 0.06" in text
    assert "a row has the same bits in passes of 4 rows or more, trees excluded" in text
    assert "else its logits differed by up to 0.03" in text
    assert "the library's float32 products: in passes of any size" in text
    assert "the library's bfloat16 products: only in passes of the same size" in text
    assert "2.50x" in text
    assert "nothing to improve was found" in text


def test_products_in_tiles_are_invariant_and_others_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that adds the number of rows to every row, below five of them, is invariant from five on."""
    cpu = torch.device("cpu")
    monkeypatch.setattr("foredraft.bench.hardware.linear", lambda x, weight: x[:, :1] + max(0, 5 - len(x)))
    assert product_invariance(8, cpu) == {"float32": 5, "bfloat16": 5}
    monkeypatch.setattr("foredraft.bench.hardware.linear", lambda x, weight: x[:, :1] + len(x))
    assert product_invariance(8, cpu) == {"float32": None, "bfloat16": None}


def test_a_good_machine_needs_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny_decoder()
    assert [clause[:15] for clause in advice_on(decoder, EXACT, FLAT, QUICK)] == ["the stock model"]


@pytest.mark.parametrize(
    ("rows", "pass_ms", "clause"),
    [
        (RowCheck(None, True, 0.1), FLAT, "--dtype float32 makes such ties rarest"),
        (EXACT, {1: 4.0, 8: 12.0}, "8 rows take 3.0 times as long as one"),
    ],
)
def test_advice_from_measurements(rows: RowCheck, pass_ms: dict[int, float], clause: str) -> None:
    assert any(clause in found for found in advice_on(tiny_decoder(), rows, pass_ms, QUICK))


def test_advice_from_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "core_count", lambda: 2)
    monkeypatch.setattr(advice, "load_average", lambda: 5.0)
    monkeypatch.setattr(advice, "bytes_of_a_pass", lambda decoder: 1 << 30)
    found = " ".join(advice_on(tiny_decoder(), EXACT, FLAT, {"copy": 20.0, "pass": 5.0}))
    assert "5.0 processes wanted the 2 cores" in found
    assert "reaches 25% of the memory's bandwidth" in found
    monkeypatch.setattr(advice, "core_count", lambda: 16)
    assert "1 of 16 cores compute" in advice_on(tiny_decoder(), EXACT, FLAT, QUICK)[0]


@pytest.mark.parametrize(("family", "unread"), [("llama", VOCAB * 32 * 8), ("gemma2", 0)])
def test_a_pass_reads_all_but_a_table_that_is_no_head(family: str, unread: int) -> None:
    decoder = tiny_decoder(family)
    total, read = weight_bytes(decoder), bytes_of_a_pass(decoder)
    assert total is not None
    assert read == total - unread


def test_what_experts_read_depends_on_the_token() -> None:
    assert bytes_of_a_pass(tiny_decoder("mixtral")) is None
