"""Redraw what the code decides in docs/reference/protocol.md: messages, numbers and state diagrams; takes no arguments.

A constant gets a row if it is a public number with a docstring; the row says what the docstring's first sentence says.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_args

from bbgrap import control
from bbgrap.control import agent, client, coordinator_settings
from bbgrap.control.lifecycles import TABLES, Lifecycle
from bbgrap.protocol import client_messages, key_messages, limits, messages, roles

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "protocol.md"

DIRECTIONS = (
    ("agent → coordinator", messages.AgentMessage),
    ("coordinator → agent", messages.AgentCommand),
    ("agent or client → coordinator, about keys", key_messages.KeyMessage),
    ("client → coordinator", client_messages.ClientMessage),
    ("coordinator → client", client_messages.ClientAnswer),
)
PEERS = (("agent", agent.AgentMachine), ("client", client.ClientMachine))


def redrawn(text: str) -> str:
    """Return the page with all generated blocks as the code has them now."""
    text = _replaced(text, "messages", message_table())
    text = _replaced(text, "roles", roles_table())
    text = _replaced(text, "settings", settings_table())
    text = _replaced(text, "peers", peers_table())
    text = _replaced(text, "constants", constants_table(_modules(control)))
    text = _replaced(text, "size limits", constants_table([limits]))
    for role in Lifecycle:
        block = f"### {role.value}\n\n```mermaid\n{diagram(role)}\n```"
        pattern = rf"### {re.escape(role.value)}\n\n```mermaid\n.*?\n```"
        text, count = re.subn(pattern, lambda _, block=block: block, text, count=1, flags=re.DOTALL)
        text = text if count else f"{text.rstrip()}\n\n{block}\n"
    return text


def diagram(lifecycle: Lifecycle) -> str:
    """Draw a lifecycle's table as a mermaid state diagram."""
    table = TABLES[lifecycle]
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table))}"]
    for state, moves in table.items():
        targets: dict[str, list[str]] = {}
        for event, target in moves.items():
            targets.setdefault(target, []).append(event)
        lines += [f"    {state} --> {target}: {', '.join(events)}" for target, events in targets.items()]
        if not moves:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines)


def _replaced(text: str, name: str, block: str) -> str:
    """Return the text with a new block between the markers of that name.

    Raises:
        ValueError: if the page has no such markers.
    """
    pattern = rf"(<!-- generated: {re.escape(name)} -->\n).*?(<!-- end -->)"
    text, count = re.subn(pattern, lambda found: f"{found[1]}\n{block}\n{found[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{PAGE}: expected one block '<!-- generated: {name} --> ... <!-- end -->', got {count}")
    return text


def message_table() -> str:
    """Return who sends which messages to whom."""
    rows = [f"| {direction} | {', '.join(f'`{kind.__name__}`' for kind in get_args(union))} |" for direction, union in DIRECTIONS]
    return "\n".join(["| from → to | messages |", "|---|---|", *rows, ""])


def roles_table() -> str:
    """Return which key may send which messages."""
    names = {
        kind: ", ".join(f"`{message.__name__}`" for message in sorted(may, key=lambda m: m.__name__)) for kind, may in roles.MAY.items()
    }
    rows = [f"| `{kind}` | {'all of agents, `Enrol`' if kind == roles.NODE else may} |" for kind, may in names.items()]
    return "\n".join(["| key | may send |", "|---|---|", *rows, ""])


def settings_table() -> str:
    """Return the numbers that a coordinator is started with."""
    numbers = [(item.name, item.default) for item in fields(coordinator_settings.Settings) if isinstance(item.default, int | float)]
    rows = [f"| `{name}` | {_said(name, value)} |" for name, value in numbers]
    return "\n".join(["| setting | value |", "|---|---|", *rows, ""])


def peers_table() -> str:
    """Return the numbers that agents and clients keep to."""
    numbers = [(who, item) for who, machine in PEERS for item in inspect.signature(machine).parameters.values()]
    rows = [
        f"| {who} | `{item.name}` | {_said(item.name, item.default)} |" for who, item in numbers if isinstance(item.default, int | float)
    ]
    return "\n".join(["| who | setting | value |", "|---|---|---|", *rows, ""])


def constants_table(modules: Iterable[ModuleType]) -> str:
    """Return the public numbers of modules, each with its meaning."""
    rows = [
        f"| `{module.__name__.rpartition('.')[2]}` | `{name}` | {_said(name, value)} | {meaning} |"
        for module in modules
        for name, value, meaning in _constants(module)
    ]
    return "\n".join(["| module | constant | value | meaning |", "|---|---|---|---|", *rows, ""])


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        yield import_module(found.name)


def _constants(module: ModuleType) -> Iterator[tuple[str, float, str]]:
    source = ast.parse(Path(str(module.__file__)).read_text())
    for statement, after in zip(source.body, [*source.body[1:], None], strict=True):
        match statement, after:
            case ast.Assign(targets=[ast.Name(name)]), ast.Expr(ast.Constant(str() as text)):
                value = getattr(module, name)
                if name.isupper() and not name.startswith("_") and isinstance(value, int | float):
                    yield name, value, re.split(r"(?<=[.])\s", " ".join(text.split()))[0]


def _said(name: str, value: float) -> str:
    """Return a number with the unit that its name ends in."""
    if name.lower().endswith("_s"):
        return f"{value:g} s"
    if not name.lower().endswith("_bytes"):
        return f"{value:,}"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if not value % size:
            return f"{value // size:g} {unit}"
    return f"{value:,} bytes"


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))
