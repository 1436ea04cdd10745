"""What `foredraft plan` prints: three figures, a verdict, speedup against draft length as bars, tables of loads."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from foredraft import economics
from foredraft.cli.plan import BatchPlan, Passes, Plan

__all__ = ["print_plan"]

BAR_WIDTH = 40
SHOWN_LENGTHS = 8
EIGHTHS = " ▏▎▍▌▋▊▉█"
TONES = {"Clear win": "green", "Modest": "green", "Break-even": "yellow"}


def print_plan(chain: Plan, loads: list[BatchPlan], passes: Passes) -> None:
    """To stdout, readable without colour."""
    console = Console(highlight=False)
    console.print(_figures(chain))
    console.print(Text(f"\n{chain.verdict}", style=f"bold {TONES.get(chain.verdict, 'red')}"))
    console.print(f"{_advice(chain)}\n")
    console.print(_plot(chain))
    if passes.cells:
        console.print(f"\nOne pass, in milliseconds: {passes.origin}")
        console.print(_pass_table(passes))
    if passes.drafts:
        console.print(f"\nDrafting, for one request: {passes.origin}")
        console.print(_draft_table(passes))
        console.print("A token's cost is in passes of one row; see --draft-cost.")
    if loads:
        console.print(f"\nUnder load: {passes.origin}")
        console.print(_load_table(loads, chain.draft_length))


def _figures(chain: Plan) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    table.add_row("tokens per cycle", f"{chain.tokens_per_cycle:.2f}", "(1 - a^(g+1)) / (1 - a)")
    table.add_row("passes per cycle", f"{chain.cost_per_cycle:.2f}", "1 + g c")
    table.add_row("speedup", Text(f"{chain.speedup:.2f}x", style="bold"), "tokens / passes")
    return table


def _advice(chain: Plan) -> str:
    """What to do, and how far the numbers may move before the answer changes."""
    if chain.best_length == 0:
        best = "No draft length pays at this acceptance and cost: the best is not to draft."
    else:
        more = " or more" if chain.best_length == max(economics.LONGEST, chain.draft_length) else ""
        best = f"The best draft length is {chain.best_length}{more}, which gives {chain.best_speedup:.2f}x."
    if chain.break_even_cost is None:
        return f"{best} Without drafts a cycle is a plain pass."
    if chain.break_even_acceptance is None:
        limits = (
            f"no acceptance is enough to break even: a draft costs {chain.draft_cost:g} passes and saves at most one"
        )
    else:
        limits = f"drafting breaks even at an acceptance of {chain.break_even_acceptance:.2f}"
    plural = "" if chain.draft_length == 1 else "s"
    cost = f"or at a draft cost of {chain.break_even_cost:.2f}"
    return f"{best} With {chain.draft_length} draft{plural}, {limits}, {cost}."


def _plot(chain: Plan) -> Table:
    """A bar for each draft length, the plain pass being length 0."""
    shown = sorted({*range(min(16, max(SHOWN_LENGTHS, chain.draft_length, chain.best_length)) + 1), chain.draft_length})
    speedups = {length: economics.speedup(chain.acceptance, length, chain.draft_cost) for length in shown}
    top = max(speedups.values())
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("drafts", justify="right")
    table.add_column("speedup", justify="right")
    table.add_column("")
    table.add_column("")
    for length, speedup in speedups.items():
        marks = ["best"] * (length == chain.best_length) + ["asked for"] * (length == chain.draft_length)
        bar = Text(_bar(speedup / top), style="green" if speedup >= 1 else "red")
        table.add_row(str(length), f"{speedup:.2f}x", bar, f"< {', '.join(marks)}" if marks else "")
    return table


def _bar(share: float) -> str:
    eighths = round(share * BAR_WIDTH * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _load_table(loads: list[BatchPlan], length: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    headings = (
        "at once",
        "context",
        "verify, passes",
        "cycle, passes",
        f"speedup of {length}",
        "best length",
        "its speedup",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for load in loads:
        table.add_row(
            str(load.batch),
            str(load.context),
            f"{load.verify_cost:.2f}",
            f"{load.cost_per_cycle:.2f}",
            f"{load.speedup:.2f}x",
            str(load.best_length),
            f"{load.best_speedup:.2f}x",
            Text(load.verdict.partition(":")[0], style=TONES.get(load.verdict, "red")),
        )
    return table


def _pass_table(passes: Passes) -> Table:
    """Rows down, loads across."""
    loads = sorted({(cell["batch"], cell["cached"]) for cell in passes.cells}, key=str)
    loads = sorted(loads, key=lambda load: (float(str(load[0])), float(str(load[1]))))
    rows = sorted({int(str(cell["rows"])) for cell in passes.cells})
    times = {(cell["rows"], cell["batch"], cell["cached"]): cell["pass_ms"] for cell in passes.cells}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("rows", justify="right")
    for batch, cached in loads:
        table.add_column(f"batch {batch}\ncached {cached}", justify="right")
    for row in rows:
        found = (times.get((row, *load)) for load in loads)
        table.add_row(str(row), *("" if time is None else f"{float(str(time)):.2f}" for time in found))
    return table


def _draft_table(passes: Passes) -> Table:
    """A line for each drafter: what it takes, and the acceptance from which that pays."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("drafter")
    for heading in ("ms a step", "length", "nodes", "cost of a token", "pays from acceptance"):
        table.add_column(heading, justify="right")
    for cell in passes.drafts:
        method, length, milliseconds, cost = (
            cell[name] for name in ("method", "draft_length", "draft_ms", "draft_cost")
        )
        if not (isinstance(length, int) and isinstance(milliseconds, float) and isinstance(cost, float)):
            table.add_row(str(method), "found none")
            continue
        needed = economics.break_even_acceptance(length, cost)
        table.add_row(
            str(method),
            f"{milliseconds:.3f}",
            str(length),
            str(cell["draft_nodes"]),
            f"{cost:.3f}",
            "never" if needed is None else f"{needed:.3f}",
        )
    return table
