"""A name stands for one thing: no public class or type alias of the product is defined in two modules."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("bbgrap", "agents", "coordinator")


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the public classes and type aliases of a module."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name[0].isupper() and not name.isupper():  # constants and type variables are in capitals
                    yield name


def test_every_name_stands_for_one_thing():
    where = defaultdict(list)
    for path in sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")):
        for name in defined(ast.parse(path.read_text())):
            where[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_finder_sees_classes_and_aliases():
    text = "class Axis: ...\nPair = tuple[int, int]\nState: type = dict\nLIMIT = 3\nT = TypeVar('M')\nclass _Own: ...\nif x: Local = int"
    assert list(defined(ast.parse(text))) == ["Axis", "Pair", "State"]
