"""The rules that a tool can check: types, lint, layers, sizes, names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import foredraft

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint() -> None:
    run(sys.executable, "-m", "ruff", "check", "src", "tests")


def test_format() -> None:
    run(sys.executable, "-m", "ruff", "format", "--check", "src", "tests")


def test_layers() -> None:
    run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")


@pytest.mark.slow
def test_types() -> None:
    run(sys.executable, "-m", "mypy")


def test_no_file_is_longer_than_400_lines() -> None:
    long = {str(path): count for path in SOURCES if (count := len(path.read_text().splitlines())) > 400}
    assert not long


def test_every_module_opens_with_its_purpose() -> None:
    silent = [str(path) for path in SOURCES if path.read_text().strip() and not path.read_text().startswith('"""')]
    assert not silent


def test_public_names_exist() -> None:
    assert all(hasattr(foredraft, name) for name in foredraft.__all__)


def test_importing_the_package_is_cheap() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, foredraft; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "False"
