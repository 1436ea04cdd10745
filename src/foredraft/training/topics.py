"""Subjects that invented conversations are about: what gives a small model's questions their variety."""

from __future__ import annotations

__all__ = ["LANGUAGES", "NAMES", "OBJECTS", "PROGRAMMING", "PROGRAMS", "TOPICS"]

TOPICS = tuple(
    line.strip()
    for line in """
    the water cycle; a lighthouse keeper's night; electric bicycles; the fall of Rome; sourdough bread; honey bees
    urban gardening; the printing press; chess openings; volcanoes; learning the violin; renewable energy
    a small bakery's first year; black holes; job interviews; the human immune system; railways in Japan; minimalism
    coral reefs; personal budgets; the French Revolution; remote work; vaccines; jazz; the Silk Road; tidal power
    marathon training; the history of zero; public libraries; glaciers; machine learning; a lost dog; tea ceremonies
    recycling; the Moon landing; time management; migration of birds; cyber security; poetry; antibiotics; wildfires
    a family holiday in Portugal; quantum computers; school lunches; the Industrial Revolution; photography at night
    inflation; deserts; open source software; sleep; the Olympic Games; octopuses; city traffic; museum tours; rivers
    a startup that failed; nutrition labels; Roman roads; video games; mental health at work; earthquakes; orchestras
    cheese making; space telescopes; a football final; local elections; house plants; whales; the periodic table
    a detective in the rain; solar panels; dental care; the invention of the bicycle; a dragon who can't fly
    supply chains; mountain rescue; classical sculpture; electric cars; forests; a time traveller; customer complaints
    the stock market; camping food; Shakespeare; bridges; asthma; robots in hospitals; a birthday speech; the Nile
    volunteering; data privacy; the theory of evolution; winter storms; language learning; fashion; coffee farming
    a new tram line; bacteria; the Great Wall of China; parenting; noise in cities; astronomy for children; lakes
    fishing villages; weather forecasts; negotiation; ancient Egypt; knitting; insurance; a haunted hotel; penguins
    """.replace("\n", ";").split(";")
    if line.strip()
)
PROGRAMMING = (
    "Python",
    "Python",
    "Python",
    "JavaScript",
    "Java",
    "C++",
    "SQL",
    "Bash",
    "Go",
    "Rust",
    "TypeScript",
    "HTML",
)
PROGRAMS = tuple(
    line.strip()
    for line in """
    counts the words in a text; finds duplicates in a list; parses a date; merges two sorted lists; a shopping cart
    checks whether a word is a palindrome; reads a CSV file; a bank account; a stack; a binary search; a to-do list
    converts temperatures; validates an email address; computes prime numbers; a linked list; retries a failing call
    groups records by key; a simple cache; a rate limiter; rotates a matrix; computes statistics of numbers; a queue
    logs messages to a file; formats money; a student with grades; sorts people by age; removes punctuation; a timer
    a bounded buffer; an inventory of a shop; a temperature sensor; a text adventure; a calculator; a phone book
    downloads a page; flattens nested lists; encodes run lengths; a tic-tac-toe board; splits a bill; a graph search
    """.replace("\n", ";").split(";")
    if line.strip()
)
LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch", "Polish", "Chinese")
NAMES = ("Maria", "Ahmed", "Tom", "Yuki", "Lena", "Carlos", "Priya", "Olga", "Ben", "Amina", "Sofia", "Jack")
OBJECTS = (
    "apples",
    "marbles",
    "tickets",
    "books",
    "pages",
    "litres of paint",
    "dollars",
    "kilometres",
    "cookies",
    "eggs",
)
