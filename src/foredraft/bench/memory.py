"""Memory of this process, in MB (10^6 bytes): now, and the peak since it was last reset. Imports no torch.

Linux keeps a high-water mark of resident memory that may be reset; elsewhere the peak is that of the whole process.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["peak_resident_mb", "reset_peak", "resident_mb"]

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_HIGH_WATER = "5"


def resident_mb() -> float:
    """Memory resident now; where the system doesn't tell, the peak."""
    return _status("VmRSS") or _process_peak()


def peak_resident_mb() -> float:
    """The most memory that was resident since `reset_peak`, or since the start where it can't be reset."""
    return _status("VmHWM") or _process_peak()


def reset_peak() -> None:
    """Start a new peak, where the system can."""
    with suppress(OSError):
        CLEAR.write_text(RESET_HIGH_WATER)


def _status(name: str) -> float | None:
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024 / 1e6
    return None


def _process_peak() -> float:
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
