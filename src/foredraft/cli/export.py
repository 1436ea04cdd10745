"""`foredraft export`: writes a drafting head in another project's format, or in foredraft's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foredraft.cli import options
from foredraft.cli.starting import starting

__all__ = ["export"]


def export(
    head: Annotated[
        str, typer.Argument(metavar="HEAD", help="A head: hub id, folder, or file of weights.", show_default=False)
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="safeailab, sglang, speculators (EAGLE), vllm-medusa, medusa, foredraft or foredraft-int8.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder to write.", show_default=False)],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="The model it drafts for: checked, and copied from where a format wants it."
        ),
    ] = None,
    revision: options.Revision = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read .bin and .pt files, by torch's weights-only loader.")
    ] = False,
    offline: options.Offline = False,
) -> None:
    """Write a drafting head in another format."""
    with starting(target or head, offline=offline):
        from foredraft.errors import LoadError
        from foredraft.heads.checkpoint import read_head
        from foredraft.heads.write import NATIVE, format_of, write_head

        format_of(form)
        facts = weights = opened = None
        if target is not None:
            from foredraft.drafters.open_head import facts_of
            from foredraft.engine.open_target import EngineArgs, open_target

            opened = open_target(EngineArgs(model=target, max_num_seqs=1, offline=offline)).target
            facts = facts_of(opened)
        loaded, info = read_head(head, target=facts, revision=revision, allow_pickle=allow_pickle, offline=offline)
        if not info.layers_known:
            raise LoadError(f"{head} doesn't say which of its target's layers it reads; pass --target")
        if opened is not None and form not in NATIVE:
            from foredraft.cli.target_weights import weights_of_target

            weights = weights_of_target(opened, output=loaded.shape.output == "target")
        folder = write_head(loaded, output, form=form, target=facts or info.target, weights=weights)
    typer.echo(f"{folder}")
