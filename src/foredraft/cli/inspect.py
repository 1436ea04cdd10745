"""`foredraft inspect`: what a checkpoint of a drafting head is, for which target, and how it has to be read.

With a target it is checked against it and tried on a text of the target's, which decides between readings where formats
disagree.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foredraft.cli import options
from foredraft.cli.starting import starting
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from foredraft.cli.head_trial import Trial
    from foredraft.heads.eagle import EagleHead, EagleShape
    from foredraft.heads.info import HeadInfo
    from foredraft.heads.medusa import MedusaHeads, MedusaShape

__all__ = ["inspect"]

FLAGS = ("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc", "para_norm", "first_norm", "qk_norm")


def inspect(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A head: hub id, folder, or file of weights.", show_default=False)
    ],
    target: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model it drafts for: check it, and try it on a text.")
    ] = None,
    revision: options.Revision = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read .bin and .pt files, by torch's weights-only loader.")
    ] = False,
    dtype: options.Dtype = "auto",
    offline: options.Offline = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Say what a drafting head is, for which target, and how it is read."""
    if target is None and dtype != "auto":
        raise ConfigError(f"--dtype is {dtype!r}, which is for the target, and there is none; add --target or drop it")
    trial: Trial | None = None
    with starting(target or path, offline=offline):
        from foredraft.heads.checkpoint import read_head

        if target is None:
            head, info = read_head(path, revision=revision, allow_pickle=allow_pickle, offline=offline)
        else:
            from foredraft.cli.head_trial import try_head
            from foredraft.drafters.open_head import facts_of
            from foredraft.engine.open_target import EngineArgs, open_target
            from foredraft.heads.files import find_head_files

            find_head_files(path, revision=revision, allow_pickle=allow_pickle, offline=offline)  # before the target
            opened = open_target(EngineArgs(model=target, dtype=dtype, max_num_seqs=1, offline=offline)).target
            head, info = read_head(
                path, target=facts_of(opened), revision=revision, allow_pickle=allow_pickle, offline=offline
            )
            trial = try_head(head, info, opened)
    report = describe(head, info, trial)
    typer.echo(json.dumps(report, indent=2) if as_json else as_text(head, info, trial))


def describe(head: EagleHead | MedusaHeads, info: HeadInfo, trial: Trial | None) -> dict[str, Any]:
    """The report for programs."""
    return {
        "path": info.path,
        "method": info.method,
        "dialect": info.dialect.value,
        "target": info.target.to_json(),
        "parameters": sum(parameter.numel() for parameter in head.parameters()),
        "dtype": _dtype(head),
        "shape": asdict(head.shape),
        "layers_known": info.layers_known,
        "doubts": [doubt.value for doubt in info.doubts],
        "notes": list(info.notes),
        "trial": None if trial is None else asdict(trial),
    }


def as_text(head: EagleHead | MedusaHeads, info: HeadInfo, trial: Trial | None) -> str:
    """The report for people."""
    shape = head.shape
    weights = sum(parameter.numel() for parameter in head.parameters())
    kind = {"eagle": "EAGLE-1 or 2", "eagle3": "EAGLE-3", "medusa": "Medusa"}[info.method]
    hidden = shape.hidden if info.target.hidden is None else info.target.hidden
    lines = [
        f"head           {kind}, in the format {info.dialect.value}",
        f"target         {info.target.name or 'not named'}: hidden size {hidden}, vocabulary {shape.vocab_size}",
        *(_medusa_lines(shape) if info.method == "medusa" else _eagle_lines(shape, info)),  # type: ignore[arg-type]
        f"weights        {weights:,}, {_dtype(head)}",
        f"drafts from    {'all' if not shape.reduced else shape.draft_vocab_size} of {shape.vocab_size} tokens",
        *(f"in doubt       {doubt.value}; --target decides" for doubt in info.doubts if trial is None),
        *(f"note           {note}" for note in info.notes),
    ]
    if trial is not None:
        shares = ", ".join(f"{share:.0%}" for share in trial.agreement)
        each = "by head" if info.method == "medusa" else "by draft depth"
        lines += [f"agreement      {shares} {each}, on {trial.tokens} tokens", f"reading        {trial.reading}"]
        lines += [
            f"  tried        {words}: {', '.join(f'{share:.0%}' for share in tried)}"
            for words, tried in trial.tried.items()
            if len(trial.tried) > 1
        ]
    config = json.dumps({"method": info.method, "model": info.path})
    return "\n".join([*lines, f"run with       --speculative-config '{config}'"])


def _eagle_lines(shape: EagleShape, info: HeadInfo) -> list[str]:
    layers = ", ".join(str(layer) for layer in shape.aux_layers)
    reads = f"the inputs of layers {layers}" if info.layers_known else f"{len(shape.aux_layers)} layers, not said which"
    flags = [name for name in FLAGS if getattr(shape, name)]
    return [
        f"reads          {'the last state, after the final norm' if shape.generation == 1 else reads}",
        f"layers         {shape.layers}, hidden size {shape.hidden}, {shape.heads} heads, {shape.kv_heads} for keys",
        f"output layer   {shape.output}",
        *([f"flags          {', '.join(flags)}"] if flags else []),
    ]


def _medusa_lines(shape: MedusaShape) -> list[str]:
    layers = "1 layer" if shape.layers == 1 else f"{shape.layers} layers"
    return [f"heads          {shape.heads}, each of {layers}", f"output layer   {shape.output.replace('_', ' ')}"]


def _dtype(head: EagleHead | MedusaHeads) -> str:
    return str(next(head.parameters()).dtype).removeprefix("torch.")
