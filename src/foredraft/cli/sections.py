"""Help in plain text, with options under headings: quick to print, and easy to read in a terminal, a pipe or a page."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

__all__ = ["SectionedCommand"]


class SectionedCommand(TyperCommand):
    """Prints its options under the headings given as `rich_help_panel`, in plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                other = "Arguments" if param.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(param, "rich_help_panel", None) or other, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
