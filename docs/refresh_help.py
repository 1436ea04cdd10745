"""Puts every command's current --help into docs/reference/cli.md; run it after changing options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "reference" / "cli.md"
BLOCK = re.compile(r"(?<=^```console\n)\$ foredraft (.*?--help)\n.*?(?=^```$)", re.DOTALL | re.MULTILINE)
PROGRAM = "from foredraft.cli.main import main; main()"


def current(block: re.Match[str]) -> str:
    """The same block with what the command prints now."""
    arguments = block[1].split()
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return f"$ foredraft {block[1]}\n{done.stdout}"


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(current, PAGE.read_text()))
