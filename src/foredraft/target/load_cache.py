"""Files foredraft keeps between runs: under `$FOREDRAFT_CACHE`, else `~/.cache/foredraft`.

A cached folder appears whole or not at all: it is written beside its final place and renamed. Its manifest records
size, time stamp and SHA-256 of every file, so that damage is noticed when it is opened; an untouched folder costs one
`stat` per file. Whatever is found damaged is rebuilt by the caller, never repaired.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from foredraft.errors import LoadError

__all__ = [
    "cache_root",
    "content_digest",
    "file_digest",
    "fresh_folder",
    "note_path",
    "read_manifest",
    "read_object",
    "seal_folder",
    "write_note",
]

MANIFEST = "manifest.json"
ABANDONED_AFTER = 6 * 3600.0  # seconds after which a killed process's unfinished folder is swept away


def cache_root() -> Path:
    """The cache directory, which may not exist yet."""
    chosen = os.environ.get("FOREDRAFT_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "foredraft"


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_digest(path: Path) -> str:
    """SHA-256 of a file, remembered in the cache as long as the file stays untouched."""
    status = path.stat()
    stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    note = note_path("digests", str(path.resolve()))
    known = read_object(note)
    if known.get("stamp") == stamp and isinstance(known.get("digest"), str):
        return str(known["digest"])
    digest = file_digest(path)
    write_note(note, {"stamp": stamp, "digest": digest})
    return digest


def note_path(kind: str, key: str) -> Path:
    """Where something that was found out about `key` is kept for later starts."""
    return cache_root() / kind / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def read_object(path: Path) -> dict[str, Any]:
    """A file's JSON object, {} if there is none that can be read."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_note(path: Path, content: Mapping[str, Any]) -> None:
    """Keep a note; a cache that can't be written only costs time."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_json(path, content)


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """An empty folder that replaces `target` when the block ends well, and vanishes when it doesn't.

    Two processes may build the same target at once: the later one finds it in place and keeps the earlier one's.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise LoadError(
            f"the cache folder {target.parent} can't be written ({error.strerror}); set FOREDRAFT_CACHE"
        ) from error
    try:
        yield unfinished
        _put_in_place(unfinished, target)
    except OSError as error:
        raise LoadError(
            f"{target.name} can't be written to the cache {target.parent} ({error.strerror or error}); "
            "free some room there or set FOREDRAFT_CACHE to another folder"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def seal_folder(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the manifest over the files now in `folder`, with the caller's facts about them."""
    files = {path.name: _entry(path) | {"sha256": file_digest(path)} for path in sorted(folder.iterdir())}
    _write_json(folder / MANIFEST, {**facts, "files": files})


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of an intact folder; None when the folder is missing, unfinished or damaged."""
    manifest = read_object(folder / MANIFEST)
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        return None
    moved = False
    for name, recorded in files.items():
        try:
            found = _entry(folder / name)
            if found["size"] != recorded["size"]:
                return None
            if found["mtime_ns"] != recorded["mtime_ns"]:  # copied, or overwritten: only the content tells
                if file_digest(folder / name) != recorded["sha256"]:
                    return None
                recorded["mtime_ns"] = found["mtime_ns"]
                moved = True
        except (OSError, KeyError, TypeError):
            return None
    if moved:
        with suppress(OSError):
            _write_json(folder / MANIFEST, manifest)
    return manifest


def _put_in_place(unfinished: Path, target: Path) -> None:
    for _ in range(3):
        with suppress(OSError):
            unfinished.rename(target)
            return
        if read_manifest(target) is not None:
            return
        shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


def _sweep(target: Path) -> None:
    for path in target.parent.glob(f".{target.name}.*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_AFTER:
                shutil.rmtree(path, ignore_errors=True)


def _entry(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    unfinished.write_text(json.dumps(content, indent=1), "utf-8")
    unfinished.replace(path)
