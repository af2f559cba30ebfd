"""What import-linter's layers cannot say: every module has a layer, and the lower ones are pure."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = [
    module.strip(" ()")
    for contract in CONTRACTS
    if contract["type"] == "layers"
    for layer in contract["layers"]
    for module in layer.split("|")
]
PURE = LAYERS[LAYERS.index("bbgrap.zoo") :]

# No socket, thread, process, clock or unseeded randomness, no kernels, no terminal.
IMPURE = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "onnxruntime",
    "psutil",
    "random",
    "rich",
    "secrets",
    "selectors",
    "socket",
    "subprocess",
    "threading",
    "time",
    "typer",
    "uuid",
    "zmq",
}


def sources(module: str) -> list[Path]:
    """List the files of a module or package; none if it is not written yet."""
    path = ROOT.joinpath(*module.split("."))
    return [path.with_suffix(".py")] if path.with_suffix(".py").exists() else sorted(path.rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the top-level name and the line of every import, at whatever depth it stands."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name.partition(".")[0], node.lineno) for alias in names)
            case ast.ImportFrom(module=str(name)):
                yield name.partition(".")[0], node.lineno
            case ast.Name(id="__import__") | ast.Attribute(attr="import_module"):
                yield "importlib", node.lineno


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_nothing_impure(module):
    faults = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(module)
        for name, line in imported(ast.parse(path.read_text()))
        if name in IMPURE | {"importlib"}
    ]
    assert not faults


def modules():
    """Every module of the product, by its name."""
    folders = ((ROOT / "bbgrap", "bbgrap"), (ROOT / "agents", ""), (ROOT / "coordinator", ""))
    for folder, package in folders:
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            yield ".".join(part for part in parts if part and part != "__init__"), path


def test_no_import_leads_back():
    """Neither those in functions nor those for annotations: a module is understood after those that it names."""
    known = dict(modules())
    named = {name: set() for name in known}
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found = {f"{node.module}.{alias.name}" for alias in node.names}
                named[name] |= {module if module in known else node.module for module in found} & known.keys()
    TopologicalSorter(named).prepare()


def test_import_finder_sees_every_form():
    text = "import time\ndef f():\n    import os.path, zmq.asyncio\n    from socket import AF_INET\n    __import__('x')"
    assert sorted(imported(ast.parse(text))) == [("importlib", 5), ("os", 3), ("socket", 4), ("time", 1), ("zmq", 3)]


def test_every_module_has_a_layer():
    written = {f"bbgrap.{path.stem}" for path in (ROOT / "bbgrap").iterdir() if path.suffix == ".py"}
    written |= {f"bbgrap.{path.parent.name}" for path in (ROOT / "bbgrap").glob("*/__init__.py")}
    assert written - set(LAYERS) == {"bbgrap.__init__"}


def test_folders_of_tests_are_those_of_the_code():
    for code, tests in (("bbgrap", "tests/bbgrap"), ("agents", "tests/agents"), ("coordinator", "tests/coordinator")):
        there = {path.parent.relative_to(ROOT / tests) for path in (ROOT / tests).rglob("test_*.py")}
        assert [folder for folder in there if not (ROOT / code / folder).is_dir()] == []


MESSAGES = ("bbgrap.protocol.client_messages", "bbgrap.control.coordinator_events")
UNUSED = {
    "bbgrap_coordinator.planner": MESSAGES,
    "bbgrap_coordinator.server": ("bbgrap.tdl", "bbgrap.program.steps"),
    "bbgrap_agent.agent": MESSAGES,
    "bbgrap_agent.worker": (*MESSAGES, "bbgrap.tdl", "bbgrap.program.steps"),
}
"""What processes begin without: messages of clients, and the descriptions of all operators. Each start would take longer by them."""


@pytest.mark.parametrize("process", UNUSED)
def test_a_process_starts_without_what_it_does_not_use(process):
    loaded = f"import sys, {process}; print(*(name for name in sys.modules if name.startswith('bbgrap')))"
    modules = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True, timeout=60).stdout.split()
    assert process in modules
    assert not set(UNUSED[process]) & set(modules)
