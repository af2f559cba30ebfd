"""What the tour names exists: every file, and every function or class in it."""

import ast
import re

import pytest

from tests.docs.documents import ROOT

TOUR = (ROOT / "docs" / "tour.md").read_text()
STEPS = re.findall(r"`([\w/]+\.py)`\s+`(\w+)`", TOUR)
FILES = re.findall(r"`([\w/]+\.py)`", TOUR)


def defined_in(path):
    """Return the names of all functions and classes of a file, methods included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


def test_the_tour_has_four_walks_of_some_steps():
    assert len(re.findall(r"^## ", TOUR, re.MULTILINE)) == 4
    assert len(STEPS) > 25


@pytest.mark.parametrize(("file", "name"), sorted(set(STEPS)))
def test_a_step_of_the_tour_exists(file, name):
    assert name in defined_in(ROOT / file)


@pytest.mark.parametrize("file", sorted(set(FILES)))
def test_a_file_of_the_tour_exists(file):
    assert (ROOT / file).is_file()
