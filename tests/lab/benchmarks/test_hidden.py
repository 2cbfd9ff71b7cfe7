"""What `bench needles` hides in documents."""

import random
import re
from collections import Counter

import pytest

from specprefill_cli.lab.benchmarks.hidden import TASKS

PROSE = "The sea is grey today. Nobody sails before noon. " * 200


def needles(text, question):
    return dict(re.findall(r"The ([^.]+) is (\d{5})\.", text))[re.search(r"What is the (.+)\?", question)[1]]


def variables(text, question):
    values = {}
    for name, assigned in re.findall(r"VAR (\w+) = (.+?)\.", text):
        values[name] = values.get(assigned.removeprefix("VAR "), assigned)
    return [name for name, value in values.items() if value in question]


def words(text, question):
    return [entry for entry, _ in Counter(re.findall(r"\d+\. (\w+)", text)).most_common(10)]


SOLVE = {"needle": needles, "needles": needles, "variables": variables, "words": words}


@pytest.mark.parametrize("task", TASKS)
def test_the_values_are_those_that_a_reader_of_the_whole_document_finds(task):
    hidden = TASKS[task](PROSE, 6_000, 0.5, random.Random(3))
    found = SOLVE[task](hidden.collection.text, hidden.question)
    assert sorted(hidden.values) == sorted([found] if isinstance(found, str) else found)
