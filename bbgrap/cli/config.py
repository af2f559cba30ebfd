"""`bbgrap config`: what every option is set to, and where that is said."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer

from bbgrap.cli.options import Json
from bbgrap.cli.output import print_json, print_result, print_table, say
from bbgrap.settings.files import CONFIG, PROGRAMS, SettingsFile, read_files

_OTHER_VARIABLES = ("BBGRAP_TOKEN", "BBGRAP_INSECURE", CONFIG)
"""Read by connections, or before there are options."""


def config(context: typer.Context, as_json: Json = False) -> None:
    """Show what the options of every program are set to, and where: the environment, a file, or their own default.

    Files are ~/.config/bbgrap.toml and, for how models are run, bbgrap.toml in the current folder. Every option can be set by a variable:
    BBGRAP_TOKEN_FILE is --token-file. The command line goes first, then the environment, the project's file, the user's file.

    Example:
        bbgrap config
    """
    files, remarks = read_files()
    rows = [row for name in PROGRAMS for row in _settings(_program(name, context), name, files)]
    known = {row["variable"] for row in rows} | set(_OTHER_VARIABLES)
    strange = sorted(
        name for name in os.environ if name.startswith("BBGRAP_") and not name.startswith("BBGRAP_BACKEND_") and name not in known
    )
    if as_json:
        print_json({"files": [str(file.path.absolute()) for file in files], "settings": rows, "unused_variables": strange})
        return
    for file in files:
        print_result(f"{'project' if file.is_project else 'user'}'s file: {file.path.absolute()}")
    together: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        key = (row["program"], row["option"], "" if row["value"] is None else str(row["value"]), row["from"])
        together.setdefault(key, []).append(row["command"])
    table = [(program, f"--{option}", value, source, ", ".join(words)) for (program, option, value, source), words in together.items()]
    print_table(("program", "option", "value", "from", "commands"), table)
    for remark in [*remarks, *(f"variable {name} is no option's" for name in strange)]:
        say(remark)


def _program(name: str, context: typer.Context) -> Any:  # noqa: ANN401 - typer's own types are private
    """Return a program's command. The others are found by name, as when they are started: nothing here depends on them."""
    if name == "bbgrap":
        return context.find_root().command
    return typer.main.get_command(import_module(f"{name.replace('-', '_')}.main").app)


def _settings(program: Any, name: str, files: tuple[SettingsFile, ...]) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - typer's own types
    from bbgrap.settings.options import commands_of, defaults_of, key_of, options_of, take_variables

    take_variables(program)
    root = typer.Context(program, info_name=name)
    by_file = {str(file.path.absolute()): defaults_of(program, name, root, (file,)) for file in files}
    merged = defaults_of(program, name, root, files)
    for path, command in commands_of(program):
        context = typer.Context(command, info_name=path[-1] if path else name, default_map=_inside(merged, path))
        for option in options_of(command):
            value, source = option.consume_value(context, {})
            where = {"ENVIRONMENT": f"variable {option.envvar}", "DEFAULT_MAP": "", "DEFAULT": "default"}[source.name]
            where = where or next(each for each in reversed(by_file) if option.name in _inside(by_file[each], path))
            yield {
                "program": name,
                "command": " ".join(path),
                "option": key_of(option),
                "value": value if isinstance(value, bool | int | float | list | None) else str(getattr(value, "value", value)),
                "from": where,
                "variable": option.envvar or "",
            }


def _inside(defaults: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for word in path:
        defaults = defaults.get(word, {})
    return defaults
