"""Settings as Typer's commands take them: as defaults from files, and from variables named like the options.

What is on the command line goes first, then the environment, the project's file, the user's, the option's own default: in this order
Typer looks. Laws: a key that no option has, or a value that does not fit its option, is an error that names the file.
"""

from __future__ import annotations

import difflib
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from bbgrap.errors import BbgrapError, UsageError
from bbgrap.own_code import full_version
from bbgrap.own_process import not_granted
from bbgrap.settings.files import PROGRAMS, SettingsFile, read_files

Command = Any
Option = Any
"""Typer's own types are private."""

_NOT_SET = frozenset({"help", "version", "install-completion", "show-completion"})
_SAID_ALOUD = "insecure"
"""The option that no file gives, and no variable but the one that connections look at themselves: an open cluster is a decision."""


def key_of(option: Option) -> str:
    """Return the name of an option in files: `token-file` for `--token-file`."""
    return str(max(option.opts, key=len)).lstrip("-")


def options_of(command: Command) -> Iterator[Option]:
    """Yield the options of a command that can be set elsewhere than on its command line."""
    for param in command.params:
        if param.param_type_name == "option" and key_of(param) not in _NOT_SET:
            yield param


def commands_of(command: Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield a command with those under it, each with the words that call it."""
    yield path, command
    for name, under in getattr(command, "commands", {}).items():
        yield from commands_of(under, (*path, name))


def take_variables(program: Command) -> None:
    """Let every option of a program be set by a variable: BBGRAP_TOKEN_FILE for `--token-file`."""
    for _, command in commands_of(program):
        for option in options_of(command):
            if option.envvar is None and key_of(option) != _SAID_ALOUD:
                option.envvar = f"BBGRAP_{key_of(option).replace('-', '_').upper()}"
                option.show_envvar = False  # the rule is said once, not at every option


def defaults_of(program: Command, name: str, context: typer.Context, files: tuple[SettingsFile, ...]) -> dict[str, Any]:
    """Return what files set of a program, in the form that Typer takes defaults in: by parameter, commands nested.

    Raises:
        UsageError: if a key or a value is wrong.
    """
    merged: dict[str, Any] = {}
    for file in files:
        for table in file.tables:
            if table not in PROGRAMS or not isinstance(file.tables[table], Mapping):
                raise UsageError(f"settings file '{file.path}': {_unknown(table, PROGRAMS)}; options stand in tables: [bbgrap]")
        _merge(merged, _defaults(program, file, (name,), file.tables.get(name, {}), {}, context))
    return merged


def _defaults(
    command: Command,
    file: SettingsFile,
    path: tuple[str, ...],
    table: Mapping[str, Any],
    general: Mapping[str, Any],
    context: typer.Context,
) -> dict[str, Any]:
    """Return the defaults of one command and those under it; `general` is said for more commands than this one."""
    under: Mapping[str, Command] = getattr(command, "commands", {})
    # The program itself is a group, whose options belong to no command.
    options = {key_of(option): option for option in options_of(command)} if not under or len(path) > 1 else {}
    reached = options.keys() | {key_of(option) for _, each in commands_of(command) if each is not command for option in options_of(each)}
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping) and key in under}
    said = {key: value for key, value in table.items() if key not in tables}
    for key, value in said.items():
        if key == _SAID_ALOUD:
            raise UsageError(f"settings file '{file.path}': [{'.'.join(path)}] 'insecure' is said on the command line only")
        if key not in reached or isinstance(value, Mapping):
            raise UsageError(f"settings file '{file.path}': [{'.'.join(path)}] {_unknown(key, sorted({*reached, *under} - {_SAID_ALOUD}))}")
    given = {**general, **said}
    defaults = {option.name: _checked(option, given[key], file, path, context) for key, option in options.items() if key in given}
    for word, each in under.items():
        defaults[word] = _defaults(each, file, (*path, word), tables.get(word, {}), given, context)
    return defaults


def _checked(option: Option, value: Any, file: SettingsFile, path: tuple[str, ...], context: typer.Context) -> Any:  # noqa: ANN401 - as read
    """Return a value that the option takes.

    Raises:
        UsageError: if it takes no such value.
    """
    wanted = "true or false" if option.is_flag else "a list" if option.multiple else "a text or a number"
    fits = isinstance(value, bool if option.is_flag else list if option.multiple else str | int | float)
    why = f"expected {wanted}, got {value!r}" if not fits or (isinstance(value, bool) and not option.is_flag) else ""
    if not why:
        try:
            option.process_value(context, value)
        except typer.BadParameter as error:
            why = str(error.message)
    if why:
        raise UsageError(f"settings file '{file.path}': [{'.'.join(path)}] {key_of(option)}: {why}")
    return value


def _unknown(key: str, known: tuple[str, ...] | list[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f"there is no '{key}'" + (f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(known)}")


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


class SettingsCommand(TyperCommand):
    """A program of one command that takes settings, and reports errors."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer's own name for the type
        """Take settings in before the command line."""
        take_variables(self)
        if not {"--help", "-h", "--version"} & set(args):  # help is there whatever the files say
            try:
                for remark in take_files(self, str(ctx.info_name), ctx):
                    typer.echo(f"{ctx.info_name}: {remark}", err=True)
            except UsageError as error:
                typer.echo(f"{ctx.info_name}: {error}", err=True)
                raise typer.Exit(error.exit_code) from None
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # typer's own name for the type
        """Run the program; an error becomes a line and an exit code, and so does what the system refuses; all else is raised again."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            refused = not_granted(error)
            if ctx.params["debug"] or not (refused or isinstance(error, BbgrapError)):
                raise
            what = f"the system refuses what it needs: {refused}; --debug shows where" if refused else str(error)
            typer.echo(f"{ctx.info_name}: {what}", err=True)
            raise typer.Exit(error.exit_code if isinstance(error, BbgrapError) else 1) from error


class SettingsGroup(TyperGroup):
    """A program of several commands that takes settings."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer's own name for the type
        """Let variables set options; files are read when a command is called, see `take_files`."""
        take_variables(self)
        if ctx.resilient_parsing:  # a shell completes a word: it is no place for remarks
            with suppress(UsageError):
                take_files(self, str(ctx.info_name), ctx)
        return super().parse_args(ctx, args)


def take_files(program: Command, name: str, context: typer.Context) -> tuple[str, ...]:
    """Read the files, and let them give the defaults; return what is to be said of files left out.

    Raises:
        UsageError: if a file is wrong.
    """
    files, remarks = read_files()
    context.default_map = defaults_of(program, name, context, files)
    return remarks


def _show(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"{context.info_name} {full_version()} (onnxruntime {version('onnxruntime')}, Python {platform.python_version()})")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Show the version and exit.", callback=_show, is_eager=True, show_envvar=False)]
"""The same in every program: what decides whether two machines go together."""
