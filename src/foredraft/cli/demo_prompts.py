"""The three prompts of `foredraft demo`: the answer repeats most of its prompt, parts of it, or nothing."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DEMO_PROMPTS", "DemoPrompt"]


class DemoPrompt(NamedTuple):
    """`text` is the whole prompt, `request` what it asks for. `workload` names the cell in the JSON."""

    title: str
    workload: str
    request: str
    text: str


CODE = '''\
def summarise_orders(orders, currency="EUR"):
    """Total, count and average of the paid orders, grouped by customer."""
    summaries = {}
    for order in orders:
        if order["status"] != "paid":
            continue
        customer = order["customer"]
        if customer not in summaries:
            summaries[customer] = {
                "count": 0,
                "total": 0.0,
                "average": 0.0,
                "currency": currency,
            }
        summary = summaries[customer]
        summary["count"] += 1
        summary["total"] += order["price"] * order["quantity"]
    for summary in summaries.values():
        summary["average"] = summary["total"] / summary["count"]
    ranked = sorted(
        summaries.items(),
        key=lambda item: item[1]["total"],
        reverse=True,
    )
    return dict(ranked)
'''

ARTICLE = """\
The lighthouse on Skerry Point went dark in the winter of 1911, and for eleven weeks nobody on the mainland knew \
why. The keeper, Aurel Finch, had written in his log every evening for nine years, never more than two lines: the \
wind, the ships, the oil that was left. On the fourth of January the entries stop. When the supply boat could land \
again at the end of March, the crew found the lamp clean, the wicks trimmed and the table laid for one. Of Finch \
there was no trace.

The village had its explanations. Some said a wave had taken him from the gallery, though the gallery stood thirty \
metres above the sea. Others remembered that he owed money in three harbours. The harbour master, who had known him \
best, kept to the facts. "A man who trims his wicks means to light them," she told the inquiry, and she would add \
nothing to that sentence for the rest of her life.

What we have learned since comes from a letter that turned up in a sea chest sixty years later. In it Finch thanks a \
fishing captain for "a passage taken without questions" and asks him to return a borrowed coat. The letter was \
posted in Halifax in May 1911. The lighthouse was given an electric lamp in 1923, and has not been dark for a single \
night since then. Its logbook is on show in the village museum, open at the last page, where the final entry reads: \
"Wind north-west, no ships, oil for ninety days."
"""

EDIT = "Rename the parameter `currency` to `unit`, everywhere in this function, and answer with the whole function."
SUMMARY = (
    "Summarise this text in a few sentences, and quote word for word what the harbour master said, what the letter "
    "says, and the last entry of the logbook."
)
QUESTION = (
    "I have a free Saturday and would like to learn to bake bread. How do I begin, and what do beginners get wrong?"
)

DEMO_PROMPTS = (
    DemoPrompt("Code edit", "edit", EDIT, f"{EDIT}\n\n```python\n{CODE}```"),
    DemoPrompt("Summary that quotes", "quote", SUMMARY, f"{ARTICLE}\n{SUMMARY}"),
    DemoPrompt("Open question", "chat", QUESTION, QUESTION),
)
