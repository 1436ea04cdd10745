"""The economics of speculation as a page to play with: plain files that work from disk, without build or network.

`page_directory()` is what a server mounts and what `foredraft plan --open` opens; `page_hash` is the page's own way to
write the three numbers into its address.
"""

from pathlib import Path

__all__ = ["page_directory", "page_hash"]


def page_directory() -> Path:
    """The folder with index.html and all it needs."""
    return Path(__file__).parent / "static"


def page_hash(acceptance: float, draft_length: int, draft_cost: float) -> str:
    """The part of the address that sets the page's dials, from "#" on."""
    return f"#a={acceptance:g}&g={draft_length}&c={draft_cost:g}"
