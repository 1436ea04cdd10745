"""The model card: what a drafter is, how well it guesses, how it was made and how it is used."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from foredraft.training.loop import Trained
from foredraft.training.records import disk_errors

__all__ = ["write_card"]

NAMES = {
    "eagle": "An EAGLE-1/2 head",
    "eagle3": "An EAGLE-3 head",
    "medusa": "Medusa heads",
    "draft": "A draft model",
}


def write_card(
    folder: Path, kind: str, parameters: int, usage: dict[str, Any], trained: Trained, provenance: dict[str, Any]
) -> None:
    """`folder`/README.md and `folder`/provenance.json. Figures are those measured on the held-out answers."""
    target, data = provenance["target"], provenance["data"]
    config = json.dumps({**usage, "model": str(folder / usage.get("model", ""))})
    shares = trained.acceptance.by_depth
    rows = "\n".join(f"| {depth} | {share:.1%} |" for depth, share in enumerate(shares, start=1))
    history = "\n".join(
        f"| {entry['step']} | {entry['loss']} | {entry['acceptance_length']} |" for entry in trained.history
    )
    recipe = data["recipe"] or {}
    prompts = "prompts from a file" if recipe.get("prompts") else "prompts that the target invented"
    text = f"""# {NAMES[kind]} for {target["name"]}

It guesses tokens of `{target["name"]}` ahead; the target checks them, so what is written doesn't change, only how soon.
{parameters / 1e6:.1f} million trained parameters, trained by foredraft {provenance["versions"]["foredraft"]}.

```sh
foredraft generate {shlex.quote(target["name"])} "..." --speculative-config {shlex.quote(config)}
```

## How well it guesses

Simulated on held-out greedy answers of the target: at every token the drafter guesses a chain, and the guesses are
compared with what the target wrote. **Acceptance length {trained.acceptance.length:.2f}** (tokens for each pass of the
target; 1.00 is plain decoding). Sampled answers and other kinds of text are accepted less or more.

| guess | right, when all before it were right or not |
|---|---|
{rows}

| step | loss | acceptance length |
|---|---|---|
{history}

## How it was made

{data["answers"]} answers of the target with {data["answer_tokens"]} tokens (SHA-256 `{data["sha256"][:16]}…`), from
{prompts}; {trained.steps} steps in {trained.seconds / 60:.0f} minutes on {provenance["machine"]["processor"]},
{provenance["machine"]["threads"]} threads. Everything else is in `provenance.json`.

```sh
{shlex.join(_command(provenance["command"]))}
```
"""
    with disk_errors(folder, "the last checkpoint is kept"):
        (folder / "README.md").write_text(text, "utf-8")
        (folder / "provenance.json").write_text(json.dumps(provenance, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _command(arguments: list[str]) -> list[str]:
    return [Path(arguments[0]).name, *arguments[1:]] if arguments else []
