"""Write docs/reference/commands.md from the commands themselves; takes no arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from bbgrap_agent.main import main as agent
from bbgrap_coordinator.main import main as coordinator
from typer.main import get_command

from bbgrap.cli.main import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"

HEAD = """\
# Commands

Written by `tools/commands_page.py` from the commands themselves; do not edit.

`MODEL` is an .onnx file or `zoo:NAME`. Commands that report take `--json`: JSON alone on stdout, progress on stderr.
`--debug`, before or after a command, shows the traceback of an error.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed, not verified, or `doctor` found an error |
| 2 | wrong usage |
| 3 | no coordinator answers, or it has no agents |
| 4 | no token, or one that does not allow this |

| environment variable | meaning |
|---|---|
| `BBGRAP_OPTION` | `--option` of every command that has it: `BBGRAP_TOKEN_FILE` ([settings](../howto/installing.md#settings)) |
| `BBGRAP_CONFIG` | the only file with settings that is read |
| `BBGRAP_COORDINATOR` | the coordinator's address, where `--coordinator`, `--join` or a session's `cluster=` is not given |
| `BBGRAP_COMPILE` | 0: agents run the portable segments, as with `--no-compile` |
| `BBGRAP_LOG_FORMAT` | `json` or `text`, where `--log-format` is not given |
| `XDG_CACHE_HOME` | folder of zoo models, of agents' weights and of the coordinator's models; default `~/.cache` |
| `XDG_CONFIG_HOME` | folder of `bbgrap.toml` and of agents' keys; default `~/.config` |
| `ORT_DISABLE_TELEMETRY` | 0: onnxruntime may report to its makers; off otherwise |

"""


EXAMPLES = {
    "bbgrap-coordinator": "bbgrap-coordinator --bind tcp://192.168.1.10:7070",
    "bbgrap-agent": "bbgrap-agent --join tcp://192.168.1.10:7070 --name left --threads 4",
}
"""Of commands whose help has none."""


def page() -> str:
    """Return the whole page."""
    group = get_command(app)
    parts = [HEAD]
    for path, command in _commands(group, "bbgrap"):
        parts.append(_section(path, command))
    parts += [_section(name, _alone(main)) for name, main in (("bbgrap-coordinator", coordinator), ("bbgrap-agent", agent))]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _alone(function: Any) -> Any:  # noqa: ANN401 - typer's own types are private
    single = typer.Typer(add_completion=False)
    single.command()(function)
    return get_command(single)


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer's own types are private
    """Yield every command with the words that call it, groups that do something themselves included."""
    for name, command in group.commands.items():
        yield f"{path} {name}", command
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")


def _section(path: str, command: Any) -> str:  # noqa: ANN401 - typer's own types are private
    text, _, examples = (command.help or "").replace("Examples:", "Example:").partition("Example:")
    rows = [_row(item) for item in command.params if item.name != "help"]
    arguments = " ".join(item.metavar or item.name.upper() for item in command.params if _is_argument(item))
    lines = [f"## {path}", "", f"`{path} [OPTIONS] {arguments}".rstrip() + "`", "", _paragraphs(text), ""]
    lines += ["| option | value | default | meaning |", "|---|---|---|---|", *rows] if rows else []
    examples = examples or EXAMPLES.get(path, "")
    shown = [line.strip() for line in examples.splitlines() if line.strip()]
    lines += ["", "```sh", *shown, "```"] if shown else []
    return "\n".join(lines) + "\n"


def _is_argument(item: Any) -> bool:  # noqa: ANN401 - typer's own types are private
    return bool(item.param_type_name == "argument")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))


def _row(item: Any) -> str:  # noqa: ANN401 - typer's own types are private
    is_flag = bool(getattr(item, "is_flag", False))
    names = [item.metavar or item.name.upper()] if _is_argument(item) else [*item.opts, *item.secondary_opts]
    value = "" if is_flag or _is_argument(item) else (item.metavar or _kind(item))
    default = (
        ""
        if item.default is None or item.default is False or item.default == "" or callable(item.default)
        else str(item.default).lower()
        if is_flag
        else str(item.default.value if isinstance(item.default, Enum) else item.default)
    )
    if item.required:
        default = "required"
    cells = (", ".join(f"`{name}`" for name in names), value, default, " ".join((getattr(item, "help", None) or "").split()))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kind(item: Any) -> str:  # noqa: ANN401 - typer's own types are private
    words = {int: "N", float: "NUMBER", Path: "PATH"}
    return words.get(item.type_descriptor.annotation, "TEXT")


if __name__ == "__main__":
    PAGE.write_text(page())
