"""`Decoder.embed`: the checkpoint's own table, whichever way and format the weights are kept in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import write_folder
from transformers import AutoModelForCausalLM

from foredraft.target.loading import prepare_target
from foredraft.target.open_decoder import open_decoder

EPSILON = {"float32": 0.0, "bfloat16": 0.0, "int8": 0.01}
FORMATS = [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("int8", torch.float32)]


@pytest.mark.parametrize(("weight_format", "dtype"), FORMATS)
@pytest.mark.parametrize("eager", [False, True], ids=["lean", "stock"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_rows_of_the_table(tmp_path: Path, weight_format: str, dtype: torch.dtype, eager: bool, tied: bool) -> None:
    if eager and weight_format == "int8":
        pytest.skip("the stock model has no int8")
    folder = write_folder(tmp_path, dtype, tie_word_embeddings=tied, hidden_size=64)
    table = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).get_input_embeddings().weight
    quantization = "int8" if weight_format == "int8" else None
    decoder = open_decoder(prepare_target(str(folder)), quantization=quantization, enforce_eager=eager, device="cpu")
    tokens = torch.tensor([3, 63, 0, 3, 17])
    rows = decoder.embed(tokens)
    assert rows.shape == (5, 64)
    error = (rows.double() - table[tokens].double()).abs().max() / table.abs().max()
    assert error <= EPSILON[weight_format]
