"""What the target is asked, when there is no data set: openings that it completes to a user's message by itself.

A chat model that is given its template up to where the user speaks invents a user (the Magpie idea, Xu et al. 2024,
arXiv 2406.08464). A few words of ours at the beginning steer it to the kinds of work that a drafter meets: chat,
questions, code, edits, sums, summaries, translations, look-ups in a text. Tasks on a text first let the target write
that text, as the answer to another question.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from foredraft.training.topics import LANGUAGES, NAMES, OBJECTS, PROGRAMMING, PROGRAMS, TOPICS

__all__ = ["TEXT", "Recipe", "choose_recipe"]

TEXT = "⟨text⟩"
"""Stands in an opening for the answer to the recipe's `source`."""


class Recipe(NamedTuple):
    """One conversation to be.

    kind      for statistics
    system    the system message; None for the template's own
    source    a question whose answer is the text to work on, or None
    opening   how the user's message begins
    open      whether the target goes on with it; else it is the whole message
    follow    whether the user asks again after the answer
    """

    kind: str
    system: str | None
    source: str | None
    opening: str
    open: bool
    follow: bool


SYSTEMS = (
    "You are a helpful assistant.",
    "Answer briefly and to the point.",
    "You are an experienced programmer. Reply with code and short explanations.",
    "You are a patient teacher who explains step by step.",
    "You are an editor. Keep the author's wording where it is good.",
)
SHARE_OF_SYSTEMS = 0.15
SHARE_OF_FOLLOW_UPS = 0.2

CHAT = (
    "", "", "", "Write a", "How do I", "Imagine", "Can you help me", "Give me", "Describe", "Draft an email", "Compose",
    "I need advice", "Pretend you are", "Plan a", "Write a blog post about {topic}",
    "Write a short story about {topic}",
    "List some ideas about {topic}", "Compare", "What do you think about {topic}", "Suggest",
    "I'm writing about {topic}",
    "Let's talk about {topic}.", "Act as", "Should I", "Rewrite", "Create a", "Which", "Tell me about {topic}",
)  # fmt: skip
QUESTION = (
    "What is", "Who", "When did", "Where", "Why", "How many", "Which", "In what year", "What are the",
    "Is it true that",
    "Explain {topic}", "Define", "What causes", "How does", "Question: ", "What does {topic}", "Name", "Who invented",
    "What is the difference between", "Why is {topic}", "What do we know about {topic}", "How is {topic}",
)  # fmt: skip
CODE = (
    "Write a {language} function", "Write a {language} program: {program}", "Implement in {language}: {program}",
    "Write {language} code for this: {program}.", "Fix the bug in this {language} code:\n\n```{lower}\n",
    "What does this {language} code do?\n\n```{lower}\n", "How do I", "Explain this error in {language}:",
    "Write unit tests for", "Write a {language} class: {program}", "Write a regular expression", "In {language}, how",
)  # fmt: skip
SUMS = (
    "{name} has {number} {objects}", "{name} buys {number} {objects}", "A shop sells {objects}", "Solve", "Calculate",
    "If {name} walks", "A train", "There are {number} {objects}", "{name} is", "What is {number} ", "Find the value of",
    "{name} earns {number} dollars", "A rectangle", "The sum of", "{name} and", "Every day {name}",
    "Half of the {objects}",
)  # fmt: skip
TRANSLATE = (
    "Translate this sentence from {foreign} into English:", "Translate into {foreign}:",
    "What does this mean in English?\n",
    "Put this {foreign} text into English: ", "Give the English translation of", "Translate to English: ",
)  # fmt: skip
ARTICLES = (
    "Write a news article about {topic}.", "Write three paragraphs about {topic}.", "Write a report about {topic}.",
    "Write a conversation between two people about {topic}.", "Write an encyclopedia entry about {topic}.",
    "Write an essay on {topic}.", "Tell the story of {topic} in a few paragraphs.",
)  # fmt: skip
SUMMARISE = (
    f"Summarise this text:\n\n{TEXT}", f"{TEXT}\n\nSum this up in two or three sentences.", f"Shorten: {TEXT}",
    f"What are the main points of this text?\n\n{TEXT}", f"Write a headline and a summary for this article:\n\n{TEXT}",
)  # fmt: skip
LOOK_UP = (
    f"Answer the question with the help of this text.\n\nText: {TEXT}\n\nQuestion:",
    f"{TEXT}\n\nAccording to the text above,",
    f"Here is a passage:\n\n{TEXT}\n\nNow tell me:",
    f"Use the documents below.\n\nDocument 1: {TEXT}\n\nQuestion: What",
)
REWORK = (
    f"Correct the mistakes in this text and repeat it in full:\n\n{TEXT}", f"Make this text more formal:\n\n{TEXT}",
    f"Take the names, places and dates out of this text and give them as JSON:\n\n{TEXT}",
    f"Rewrite the text as a list:\n\n{TEXT}", f"{TEXT}\n\nRepeat this text, but change",
)  # fmt: skip
SCRIPTS = ("Write a {language} function or class: {program}.", "Write a short {language} script: {program}.")
EDIT = (
    f"Rename the variables in this code to better names and return the whole code.\n\n{TEXT}",
    f"Add comments to this code and give me all of it:\n\n{TEXT}",
    f"Add type hints and docstrings. Show the complete code.\n\n{TEXT}",
    f"Here is my code:\n\n{TEXT}\n\nChange it so that",
    f"Edit the following code. Return the full file.\n\n{TEXT}\n\nEdit: add",
    f"{TEXT}\n\nHandle errors in this code; keep everything else as it is and print the whole result.",
    f"Refactor this:\n\n{TEXT}\n\nThe code should",
)


def choose_recipe(random: Random) -> Recipe:
    """Draw a recipe; the same state of `random` gives the same one."""
    kind = random.choices(list(MAKERS), [share for share, _ in MAKERS.values()])[0]
    source, opening = MAKERS[kind][1](random)
    words = _words(random)
    return Recipe(
        kind,
        random.choice(SYSTEMS) if random.random() < SHARE_OF_SYSTEMS else None,
        None if source is None else source.format(**words),
        _fill(opening, words),
        opening not in WHOLE,
        random.random() < SHARE_OF_FOLLOW_UPS,
    )


def _words(random: Random) -> dict[str, str]:
    language = random.choice(PROGRAMMING)
    return {
        "topic": random.choice(TOPICS),
        "language": language,
        "lower": language.lower(),
        "program": random.choice(PROGRAMS),
        "foreign": random.choice(LANGUAGES),
        "name": random.choice(NAMES),
        "objects": random.choice(OBJECTS),
        "number": str(random.choice((2, 3, 5, 8, 12, 15, 20, 24, 36, 40, 75, 120))),
    }


def _fill(opening: str, words: dict[str, str]) -> str:
    return opening.format(**words)


def _from(openings: tuple[str, ...]) -> Callable[[Random], tuple[None, str]]:
    return lambda random: (None, random.choice(openings))


def _on(sources: tuple[str, ...], openings: tuple[str, ...]) -> Callable[[Random], tuple[str, str]]:
    return lambda random: (random.choice(sources), random.choice(openings))


WHOLE = frozenset(
    {*SUMMARISE, *(each for each in (*REWORK, *EDIT) if each.endswith((TEXT, "print the whole result.")))}
)
"""Messages that need nothing after the opening."""
MAKERS: dict[str, tuple[float, Callable[[Random], tuple[str | None, str]]]] = {
    "chat": (0.24, _from(CHAT)),
    "question": (0.15, _from(QUESTION)),
    "code": (0.12, _from(CODE)),
    "edit": (0.1, _on(SCRIPTS, EDIT)),
    "sums": (0.14, _from(SUMS)),
    "summarise": (0.08, _on(ARTICLES, SUMMARISE)),
    "look-up": (0.06, _on(ARTICLES, LOOK_UP)),
    "rework": (0.04, _on(ARTICLES, REWORK)),
    "translate": (0.07, _from(TRANSLATE)),
}
