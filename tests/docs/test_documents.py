"""Documents are short, their links lead somewhere, and what they name exists."""

import re
import tomllib
from functools import cache
from itertools import pairwise

import pytest

from benchmarks import speedups
from tests.docs.documents import GENERATED, ROOT, documents

DOCUMENTS = {document.name: document for document in documents()}
LIMITS = {"README.md": 900, "CONTRIBUTING.md": 700, "docs/architecture.md": 1500, "docs/benchmarks.md": 900, "docs/tour.md": 600}
DECISION, TUTORIAL, PAGE = 400, 600, 2500
HEADINGS = ("Context", "Decision", "Measured", "Consequences")


def parametrized(chosen):
    names = [name for name, document in DOCUMENTS.items() if chosen(document)]
    return pytest.mark.parametrize("document", [DOCUMENTS[name] for name in names], ids=names)


each = parametrized(lambda document: True)
each_written = parametrized(lambda document: document.name not in GENERATED)
each_of_today = parametrized(lambda document: not document.is_decision and document.name not in GENERATED)
each_decision = parametrized(lambda document: document.is_decision)


def limit_of(document):
    return LIMITS.get(document.name, DECISION if document.is_decision else TUTORIAL if document.is_tutorial else PAGE)


def linked(text):
    """Yield the targets of a page's links but those that lead out."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if not re.match(r"[a-z]+:", target):
            yield target


@cache
def anchors(path):
    """Return the anchors of a page's headings, as they are made on the web."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_written
def test_a_document_is_no_longer_than_its_limit(document):
    assert document.words <= limit_of(document)


@each
def test_every_link_leads_to_a_file_and_its_heading(document):
    here = (ROOT / document.name).parent
    for target in linked(document.prose):
        path, _, anchor = target.partition("#")
        there = here / path if path else ROOT / document.name
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@parametrized(lambda document: document.is_tutorial)
def test_sentences_of_a_tutorial_are_short(document):
    for paragraph in re.split(r"\n\n|\n(?:[-|#]|\d+\.) ", document.prose):
        for clause in re.split(r"[.:;?](?:\*\*)?\s|\*\*|\|", paragraph + " "):
            assert len(clause.split()) <= 25, clause


@each_of_today
def test_a_document_tells_no_time_of_day(document):
    assert not re.findall(r"(?<![\w:.\[])(?:[01]?\d|2[0-3]):[0-5]\d(?![\w:\]])", document.prose)


@each_of_today
def test_files_that_a_document_names_exist(document):
    for name in re.findall(r"`((?:[\w-]+/)+(?:[\w-]+[.](?:py|md|yaml|toml))?)`", document.prose):
        assert any((ROOT / folder / name).exists() for folder in ("", "bbgrap", "docs")), name


def test_the_list_of_folders_is_in_the_order_of_the_layers():
    """Where it was not, what it says of imports was wrong."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    height = {name: -place for place, layer in enumerate(layers) for name in re.findall(r"\bbbgrap\.(\w+)", layer)}
    listed = re.findall(r"^  ((?:\w+(?:/|\.py) *)+)", DOCUMENTS["docs/architecture.md"].text, re.MULTILINE)
    lines = [[height[name] for name in re.findall(r"\w+(?=/|\.py)", line)] for line in listed]
    assert sum(map(len, lines)) > 30
    assert all(max(lower) <= min(upper) for lower, upper in pairwise(lines))


@each_decision
def test_a_decision_has_a_status_and_four_headings(document):
    assert re.match(r"# \d+\. .+\n\nStatus: (in force|taken out)", document.text)
    assert tuple(re.findall(r"^## (.+)$", document.text, re.MULTILINE)) == HEADINGS


def test_the_history_of_measurements_links_to_files():
    history = ROOT / "benchmarks" / "results" / "HISTORY.md"
    assert all((history.parent / target.partition("#")[0]).exists() for target in linked(history.read_text()))


def test_the_page_of_decisions_has_all_of_them_with_title_and_status():
    rows = []
    for name, document in sorted(DOCUMENTS.items()):
        if document.is_decision:
            number, title, status = re.match(r"# (\d+)\. (.+)\n\nStatus: (in force|taken out)", document.text).groups()
            rows.append(f"| [{number}]({name.removeprefix('docs/')}) | {title} | {status} |")
    assert re.findall(r"^\| \[.+$", DOCUMENTS["docs/decisions.md"].text, re.MULTILINE) == rows


def test_decisions_are_numbered_without_a_gap():
    numbers = [int(name.split("/")[-1][:4]) for name in DOCUMENTS if DOCUMENTS[name].is_decision]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_the_table_of_speedups_is_that_of_the_results():
    table = speedups.table(speedups.rows_of_auto())
    for path in speedups.DOCUMENTS:
        assert table in path.read_text(), "run: python -m benchmarks.speedups"


def test_the_first_page_leads_to_every_page():
    first = {target.partition("#")[0] for target in linked(DOCUMENTS["docs/index.md"].text)}
    pages = {name.removeprefix("docs/") for name in DOCUMENTS if name.startswith("docs/") and not DOCUMENTS[name].is_decision}
    assert pages - first == {"index.md"}
