"""`foredraft train`: data and drafters made from nothing but the target.

Progress goes to stderr. Every run can be killed at any moment and goes on when the same command is given again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foredraft.cli import options
from foredraft.cli.sections import SectionedCommand
from foredraft.cli.terminal import say
from foredraft.cli.train_progress import duration
from foredraft.cli.train_run import PARALLEL, Asked, Course, Setup, check_folder, run, set_threads, write_data
from foredraft.errors import ConfigError

__all__ = ["app"]

app = typer.Typer(help="Train a drafter for a model.", rich_markup_mode=None, no_args_is_help=True)

DATA = "Data"
Output = Annotated[Path, typer.Option(metavar="DIR", help="Where everything is written.", show_default=False)]
Tokens = Annotated[int, typer.Option(metavar="N", help="Answer tokens to make.", rich_help_panel=DATA)]
PromptsFile = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help="Prompts to answer, .jsonl or .txt; without it the model invents them.",
        rich_help_panel=DATA,
    ),
]
AnswerTokens = Annotated[int, typer.Option(metavar="N", help="Longest answer, in tokens.", rich_help_panel=DATA)]
Temperatures = Annotated[
    str,
    typer.Option(metavar="X,X", help="Temperatures of the answers, one is drawn for each.", rich_help_panel=DATA),
]
KeepStates = Annotated[
    bool,
    typer.Option(
        "--keep-states/--no-states",
        help="Keep the target's hidden states on disk, so that training need not compute them.",
        rich_help_panel=DATA,
    ),
]
DataSeed = Annotated[int, typer.Option("--seed", metavar="N", help="The same seed makes the same data.")]
Threads = Annotated[int | None, typer.Option(metavar="N", help="CPU threads. [default: all cores]")]


@app.command(cls=SectionedCommand)
def data(
    model: options.Model,
    output: Output,
    tokens: Tokens = 1_000_000,
    prompts: PromptsFile = None,
    max_tokens: AnswerTokens = 320,
    temperatures: Temperatures = "0,0,0.7,1",
    keep_states: KeepStates = True,
    seed: DataSeed = 0,
    max_num_seqs: options.MaxNumSeqs = 32,
    threads: Threads = None,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    device: options.Device = "auto",
    max_model_len: options.MaxModelLen = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
) -> None:
    """Let the model invent prompts and answer them; the answers are what its drafters learn from."""
    from foredraft.training.prompts import read_prompts

    check_folder(output)
    given = None if prompts is None else read_prompts(prompts)
    drawn = parse_temperatures(temperatures)
    set_threads(threads)
    setup = Setup(
        model, output, None, tokens, threads, device, quantization, dtype, revision, trust_remote_code, offline
    )
    asked = Asked(seed, max_tokens, drawn, given, keep_states, max_num_seqs or PARALLEL, max_model_len)
    made = write_data(setup, output, asked)
    added = made.tokens - made.started
    say(f"{made.records} answers, {made.tokens} tokens in {output} ({added} new in {duration(made.seconds)})")
    if made.tokens < tokens:
        say(f"the prompts are used up before {tokens} tokens; add prompts, or leave out --prompts")


TRAINING, DRAFTER = "Training", "Drafter"
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Data that was made before. [default: OUTPUT/data, made if need be]"),
]
Epochs = Annotated[float, typer.Option(metavar="X", help="Times over the data.", rich_help_panel=TRAINING)]
BatchTokens = Annotated[int, typer.Option(metavar="N", help="Tokens of a batch.", rich_help_panel=TRAINING)]
Accumulate = Annotated[int, typer.Option(metavar="N", help="Batches of a step.", rich_help_panel=TRAINING)]
LearningRate = Annotated[
    float | None, typer.Option(metavar="X", help="Largest rate. [default: by kind]", rich_help_panel=TRAINING)
]
MaxLength = Annotated[
    int, typer.Option(metavar="N", help="Texts are cut after so many tokens.", rich_help_panel=TRAINING)
]
CheckpointMinutes = Annotated[
    float, typer.Option(metavar="X", help="Between checkpoints: what a kill can cost.", rich_help_panel=TRAINING)
]
LossName = Annotated[
    str,
    typer.Option("--loss", metavar="NAME", help="kl, or lk: kl at first, then acceptance.", rich_help_panel=TRAINING),
]
TrainSeed = Annotated[int, typer.Option("--seed", metavar="N", help="Of order, noise and starting weights.")]
DraftVocabSize = Annotated[
    int, typer.Option(metavar="N", help="Most frequent tokens that are learned.", rich_help_panel=DRAFTER)
]
Steps = Annotated[
    int, typer.Option("--steps", metavar="N", help="Draft steps that training goes through.", rich_help_panel=DRAFTER)
]
Decay = Annotated[
    float, typer.Option(metavar="X", help="Weight of a step over the one before.", rich_help_panel=DRAFTER)
]
Intermediate = Annotated[
    int | None,
    typer.Option(metavar="N", help="Feed-forward width. [default: the target's]", rich_help_panel=DRAFTER),
]


@app.command(cls=SectionedCommand)
def eagle3(
    model: options.Model,
    output: Output,
    data: Data = None,
    tokens: Tokens = 1_000_000,
    steps: Steps = 3,
    decay: Decay = 0.8,
    draft_vocab_size: DraftVocabSize = 8192,
    intermediate: Intermediate = None,
    norm_output: Annotated[
        bool, typer.Option("--norm-output", help="Feed back normalised states (3.1).", rich_help_panel=DRAFTER)
    ] = False,
    loss: LossName = "kl",
    epochs: Epochs = 2.0,
    batch_tokens: BatchTokens = 512,
    accumulate: Accumulate = 1,
    learning_rate: LearningRate = None,
    max_length: MaxLength = 1024,
    checkpoint_minutes: CheckpointMinutes = 5.0,
    seed: TrainSeed = 0,
    threads: Threads = None,
    device: options.Device = "auto",
    quantization: options.Quantization = None,
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
) -> None:
    """An EAGLE-3 head: reads three of the target's layers and drafts from the most frequent tokens."""
    asked = {
        "draft_vocab_size": draft_vocab_size,
        "steps": steps,
        "decay": decay,
        "intermediate": intermediate,
        "norm_output": norm_output,
    }
    run(
        "eagle3",
        Setup(model, output, data, tokens, threads, device, quantization, dtype, revision, trust_remote_code, offline),
        Course(loss, epochs, batch_tokens, accumulate, learning_rate, max_length, checkpoint_minutes, seed),
        asked,
    )


@app.command(cls=SectionedCommand)
def eagle(
    model: options.Model,
    output: Output,
    data: Data = None,
    tokens: Tokens = 1_000_000,
    steps: Steps = 3,
    decay: Decay = 0.8,
    draft_vocab_size: DraftVocabSize = 8192,
    intermediate: Intermediate = None,
    regression: Annotated[
        float, typer.Option(metavar="X", help="Weight of the next state's regression.", rich_help_panel=DRAFTER)
    ] = 1.0,
    classification: Annotated[
        float, typer.Option(metavar="X", help="Weight of the next token's distribution.", rich_help_panel=DRAFTER)
    ] = 1.0,
    noise: Annotated[
        float, typer.Option(metavar="X", help="Largest noise on the states it reads.", rich_help_panel=DRAFTER)
    ] = 0.1,
    loss: LossName = "kl",
    epochs: Epochs = 2.0,
    batch_tokens: BatchTokens = 512,
    accumulate: Accumulate = 1,
    learning_rate: LearningRate = None,
    max_length: MaxLength = 1024,
    checkpoint_minutes: CheckpointMinutes = 5.0,
    seed: TrainSeed = 0,
    threads: Threads = None,
    device: options.Device = "auto",
    quantization: options.Quantization = None,
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
) -> None:
    """An EAGLE-1 head (EAGLE-2 drafts trees with the same one): predicts the target's next state."""
    asked = {
        "draft_vocab_size": draft_vocab_size,
        "steps": steps,
        "decay": decay,
        "intermediate": intermediate,
        "regression": regression,
        "classification": classification,
        "noise": noise,
    }
    run(
        "eagle",
        Setup(model, output, data, tokens, threads, device, quantization, dtype, revision, trust_remote_code, offline),
        Course(loss, epochs, batch_tokens, accumulate, learning_rate, max_length, checkpoint_minutes, seed),
        asked,
    )


@app.command(cls=SectionedCommand)
def medusa(
    model: options.Model,
    output: Output,
    data: Data = None,
    tokens: Tokens = 1_000_000,
    heads: Annotated[int, typer.Option(metavar="N", help="How many tokens ahead.", rich_help_panel=DRAFTER)] = 4,
    layers: Annotated[int, typer.Option(metavar="N", help="Blocks of a head.", rich_help_panel=DRAFTER)] = 1,
    output_layer: Annotated[
        str,
        typer.Option(metavar="NAME", help="target (shared), low_rank, or own for each head.", rich_help_panel=DRAFTER),
    ] = "target",
    rank: Annotated[int, typer.Option(metavar="N", help="Of a low-rank layer.", rich_help_panel=DRAFTER)] = 128,
    draft_vocab_size: DraftVocabSize = 8192,
    loss: LossName = "kl",
    epochs: Epochs = 3.0,
    batch_tokens: BatchTokens = 512,
    accumulate: Accumulate = 1,
    learning_rate: LearningRate = None,
    max_length: MaxLength = 1024,
    checkpoint_minutes: CheckpointMinutes = 5.0,
    seed: TrainSeed = 0,
    threads: Threads = None,
    device: options.Device = "auto",
    quantization: options.Quantization = None,
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
) -> None:
    """Medusa heads: several guesses from the target's last state, each for a later token."""
    asked = {
        "draft_vocab_size": draft_vocab_size,
        "heads": heads,
        "layers": layers,
        "form": output_layer.replace("-", "_"),
        "rank": rank,
    }
    run(
        "medusa",
        Setup(model, output, data, tokens, threads, device, quantization, dtype, revision, trust_remote_code, offline),
        Course(loss, epochs, batch_tokens, accumulate, learning_rate, max_length, checkpoint_minutes, seed),
        asked,
    )


@app.command(cls=SectionedCommand)
def draft(
    model: options.Model,
    output: Output,
    data: Data = None,
    tokens: Tokens = 1_000_000,
    layers: Annotated[
        int, typer.Option(metavar="N", help="Of the target's layers that it keeps.", rich_help_panel=DRAFTER)
    ] = 3,
    draft_vocab_size: DraftVocabSize = 8192,
    loss: LossName = "kl",
    epochs: Epochs = 2.0,
    batch_tokens: BatchTokens = 512,
    accumulate: Accumulate = 1,
    learning_rate: LearningRate = None,
    max_length: MaxLength = 1024,
    checkpoint_minutes: CheckpointMinutes = 5.0,
    seed: TrainSeed = 0,
    threads: Threads = None,
    device: options.Device = "auto",
    quantization: options.Quantization = None,
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
) -> None:
    """A draft model: some of the target's own layers, distilled on what the whole target says."""
    asked = {"draft_vocab_size": draft_vocab_size, "layers": layers}
    run(
        "draft",
        Setup(model, output, data, tokens, threads, device, quantization, dtype, revision, trust_remote_code, offline),
        Course(loss, epochs, batch_tokens, accumulate, learning_rate, max_length, checkpoint_minutes, seed),
        asked,
    )


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Numbers between commas."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--temperatures is {text!r}; give numbers between commas, such as 0,0.7,1") from error
    if any(not 0 <= temperature <= 2 for temperature in found):
        raise ConfigError(f"--temperatures is {text!r}; give numbers from 0 to 2")
    return found
