"""Prompts of five kinds, made from templates: what a draft is trained on, tested on, and served.

The kinds differ in what matters here, how well a small draft can foresee the answer. The same seed gives the same
prompts everywhere; prompts of two seeds may coincide, so a held-out set is made by excluding the other.

    python -m pairs.prompts --kind code --count 2000 --seed 7 > code.jsonl      # a data set for `specpivot sweep`
"""

from __future__ import annotations

import argparse
import json
import random
import string
from typing import Literal, get_args

from harness.errors import UserError
from pairs.files import run

Kind = Literal["code", "prose", "lists", "dialogue", "arithmetic"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PATIENCE = 50  # draws per prompt that are tried for a new one

_TEMPLATES: dict[Kind, tuple[str, ...]] = {
    "code": (
        "Write a {language} function that {task}. Call it {name}.",
        "Show me how to {task2} in {language}, with a short example.",
        "Write a {language} class named {thing} with the fields {field} and {field2} and a method that prints them.",
        "Here is a {language} function: {name}(values). It should {task2}. Write its body and three tests.",
        "Explain with a code example what a {concept} is in {language}.",
        "Translate this into {language}: for every {field} in a list of {plural}, print the {field2}.",
        "Write a small {language} program that reads a file of {plural} and {task}.",
    ),
    "prose": (
        "Write a short story about {person} who finds {object} {place}.",
        "Describe {place2} in the {season} for somebody who has never been there.",
        "Write two paragraphs on why {topic} matters to {audience}.",
        "Explain {topic} to {audience} in plain words.",
        "Write the opening of a novel in which {person} loses {object} {place}.",
        "Summarise the history of {topic} in about a hundred words.",
        "Write a letter from {person} to {person2} about {topic}.",
    ),
    "lists": (
        "List {count} {plural2} for {audience}, one per line.",
        "Give me a shopping list for {meal} for {count} people.",
        "Make a numbered list of {count} steps to {chore}.",
        "Name {count} countries, rivers or cities that begin with the letter {letter}.",
        "Make a table with {count} rows: {plural}, their {field} and their {field2}.",
        "List the advantages and the disadvantages of {topic} as bullet points, {count} each.",
        "Give {count} titles for a talk on {topic}.",
    ),
    "dialogue": (
        "Write a conversation between {person} and {person2} about {topic}.",
        "{person} wants to buy {object} from {person2}. Write what they say, at least eight lines.",
        "Write an interview with {person} on {topic}, with {count} questions and answers.",
        "Continue the dialogue. A: Did you hear about {object} {place}? B:",
        "You are {person}. I ask you: what do you think of {topic}? Answer me, then ask me something back.",
        "Write a phone call in which {person} explains {topic} to {person2}.",
        "Write a quarrel between {person} and {person2} over {object}, which ends well.",
    ),
    "arithmetic": (
        "What is {a} + {b}? Show each step.",
        "Compute {a} - {b} and then multiply the result by {small}.",
        "A shop sells {plural} at {small} dollars each. What do {b} of them cost, and what is the change from {big}?",
        "Write the multiplication table of {small} from 1 to {count2}.",
        "Add these numbers one after the other: {a}, {b}, {small}, {big}.",
        "A train travels {a} kilometres in {small} hours. How far does it go in {count2} hours?",
        "Count from {b} in steps of {small}, {count2} times.",
    ),
}  # fmt: skip

_WORDS: dict[str, tuple[str, ...]] = {
    "language": ("Python", "JavaScript", "C", "Java", "Go", "Rust", "SQL", "Bash", "Ruby", "C++", "Haskell", "Lua"),
    "task": (
        "returns the largest of three numbers", "counts the words of a text", "reverses a string",
        "checks whether a number is prime", "sorts them by length", "removes duplicates", "adds up all even numbers",
        "finds the longest common prefix", "converts Celsius to Fahrenheit", "prints the first n Fibonacci numbers",
        "merges two sorted lists", "tests whether a word is a palindrome", "counts vowels", "computes the average",
        "finds the second smallest value", "prints them in reverse order", "groups them by their first letter",
    ),
    "task2": (
        "sort a list of tuples by the second item", "read a JSON file", "open a socket", "walk through a directory",
        "count how often each value occurs", "compute the median", "split a text into sentences", "parse a date",
        "find the shortest path in a grid", "transpose a matrix", "cache the results of a function", "sum all values",
        "retry a request three times", "flatten a nested list", "search in a sorted array", "validate an address",
    ),
    "name": ("solve", "run_all", "compute", "find_best", "process", "helper", "check", "build", "scan", "measure"),
    "thing": ("Account", "Vehicle", "Student", "Invoice", "Planet", "Recipe", "Ticket", "Sensor", "Garden", "Robot"),
    "field": ("name", "age", "weight", "price", "colour", "title", "speed", "owner", "length", "address", "date"),
    "concept": ("closure", "generator", "linked list", "hash table", "recursion", "pointer", "loop", "queue", "mutex"),
    "plural": ("apples", "books", "cars", "birds", "employees", "stars", "songs", "rivers", "pencils", "tickets"),
    "plural2": (
        "good habits", "books to read", "easy dinners", "games without a board", "gifts", "questions to ask",
        "ways to save water", "safety rules", "exercises", "team names", "hobbies", "mistakes to avoid",
    ),
    "person": (
        "a retired sailor", "a young teacher", "Maria", "the mayor of a small town", "an old clockmaker", "Tom",
        "a tired nurse", "a curious child", "a bus driver", "Professor Lind", "a travelling musician", "Aisha",
        "a beekeeper", "a night guard", "the youngest of five sisters", "a robot", "a gardener", "an honest thief",
    ),
    "object": (
        "a silver key", "an unopened letter", "a map without names", "a broken violin", "a blue bicycle", "a lost dog",
        "a box of photographs", "a telescope", "an umbrella", "a very old coin", "a talking parrot", "a red notebook",
    ),
    "place": (
        "in a railway station", "under the floor", "on a mountain path", "in the library", "at the harbour",
        "behind the bakery", "in an empty theatre", "on the last bus", "in the forest", "at a wedding",
    ),
    "place2": ("a fishing village", "the desert", "a big city", "an island", "a market", "a monastery", "the tundra"),
    "season": ("spring", "summer", "autumn", "winter", "rainy season", "early morning", "night"),
    "topic": (
        "sleep", "public libraries", "the tides", "renewable energy", "honesty", "the printing press", "chess",
        "how vaccines work", "budgeting", "gravity", "bread", "remote work", "the water cycle", "friendship", "bees",
        "electric cars", "the moon", "learning a language", "city parks", "volcanoes", "music", "the Silk Road",
    ),
    "audience": (
        "a ten-year-old", "engineers", "parents", "new students", "a small company", "older people", "tourists",
        "beginners", "a busy manager", "teachers", "athletes", "farmers",
    ),
    "meal": ("breakfast", "a birthday party", "a picnic", "soup and bread", "a vegetarian dinner", "a barbecue"),
    "chore": (
        "change a tyre", "plant a tree", "write a letter of application", "clean a kitchen", "bake bread",
        "prepare for an exam", "move to a new flat", "repair a bicycle", "train a puppy", "plan a holiday",
    ),
    "letter": tuple("ABCDEFGHIKLMNOPRSTUVW"),
}  # fmt: skip
_NUMBERS = {"a": (100, 9999), "b": (11, 99), "small": (2, 19), "big": (1000, 5000), "count": (3, 12), "count2": (5, 15)}


def prompts(kind: Kind, count: int, seed: int, without: frozenset[str] = frozenset()) -> list[str]:
    """Different prompts of one kind.

    Args:
        without: prompts that must not be among them.

    Raises:
        UserError: the templates do not hold that many.
    """
    draw = random.Random(f"{seed}/{kind}")
    found: dict[str, None] = {}
    for _ in range(count * PATIENCE):
        if len(found) == count:
            break
        prompt = _filled(draw.choice(_TEMPLATES[kind]), draw)
        if prompt not in without:
            found[prompt] = None
    if len(found) < count:
        raise UserError(f"the templates of {kind} give no {count} different prompts; ask for {len(found)} or fewer")
    return list(found)


def _filled(template: str, draw: random.Random) -> str:
    """The template with a word or number for each place; `field2` is another `field`."""
    used: dict[str, str] = {}
    for _, place, _, _ in string.Formatter().parse(template):
        if place is not None:
            used[place] = _word(place, draw, used)
    text = template.format(**used)
    return text[0].upper() + text[1:]


def _word(place: str, draw: random.Random, used: dict[str, str]) -> str:
    if place in _NUMBERS:
        return str(draw.randint(*_NUMBERS[place]))
    base = place if place in _WORDS else place.rstrip("2")
    return draw.choice([word for word in _WORDS[base] if word not in used.values()])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pairs.prompts", description="Prompts as JSON lines.")
    parser.add_argument("--kind", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--count", type=int, default=1000, help="prompts of each kind")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args(arguments)
    for kind in KINDS if given.kind == "all" else (given.kind,):
        for prompt in prompts(kind, given.count, given.seed):
            print(json.dumps({"prompt": prompt, "kind": kind}, ensure_ascii=False))


if __name__ == "__main__":
    run(main)
