"""The command `bbgrap`: its commands, and what becomes of their errors.

An error is one line on stderr, `bbgrap: what is wrong and what to do`, and an exit code: 1 failed or not verified, 2 usage, 3 cluster
unavailable, 4 no access. `--debug`, before or after the command, shows the traceback instead.
"""

from __future__ import annotations

import errno
import io
import shlex
import signal
import sys
from typing import Annotated

import typer

from bbgrap.cli import profile, token
from bbgrap.cli.bench import bench
from bbgrap.cli.completion import whole_words
from bbgrap.cli.config import config
from bbgrap.cli.demo import demo
from bbgrap.cli.doctor import doctor
from bbgrap.cli.exec import SETTINGS, exec_program
from bbgrap.cli.export import export
from bbgrap.cli.input_options import FreeDimensionsError
from bbgrap.cli.inspect import inspect
from bbgrap.cli.local import local
from bbgrap.cli.nodes import nodes
from bbgrap.cli.output import report_error, say
from bbgrap.cli.plan import plan
from bbgrap.cli.serve import serve
from bbgrap.cli.simulate import simulate
from bbgrap.cli.status import status
from bbgrap.cli.submit import submit
from bbgrap.cli.top import top
from bbgrap.cli.trace import trace
from bbgrap.cli.up import down, up
from bbgrap.cli.zoo import zoo
from bbgrap.errors import BbgrapError
from bbgrap.own_process import not_granted, open_closed_streams, stop_signals, write_out
from bbgrap.settings.options import SettingsGroup, Version, take_files

_UNWRITTEN = "the output cannot be written: {}"


class _Group(SettingsGroup):
    """Reports errors, and takes `--debug` wherever it stands."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer's own name for the type
        """Move `--debug` to where it belongs, before the command."""
        ctx.obj = list(args)  # for errors that say how the command would go on
        # What follows `exec` may be another program's.
        ours = args.index("exec") if next((arg for arg in args if not arg.startswith("-")), "") == "exec" else len(args)
        rest = [arg for arg in args[:ours] if arg != "--debug"]
        try:
            return super().parse_args(ctx, args if len(rest) == ours else ["--debug", *rest, *args[ours:]])
        except OSError as error:  # of `--help` and `--version`, which print before there is a command
            if isinstance(error, BrokenPipeError):
                raise
            report_error(_UNWRITTEN.format(error.strerror or error))
            raise typer.Exit(1) from None

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # typer's own name for the type
        """Run the command; an error becomes a line and an exit code."""
        try:
            for remark in take_files(self, "bbgrap", ctx):
                say(remark)
            return super().invoke(ctx)
        except Exception as error:  # whatever it is, people get a line, and a traceback with --debug
            if isinstance(error.__cause__, KeyboardInterrupt | SystemExit):
                raise error.__cause__ from None  # a signal came while a compiled package began, which makes an ImportError of it
            verdict = None if ctx.params["debug"] else _verdict(error)
            if verdict is None:
                raise
            text, exit_code = verdict
            again = f", for example: {shlex.join(['bbgrap', *ctx.obj, *error.options])}" if isinstance(error, FreeDimensionsError) else ""
            report_error(text + again)
            raise typer.Exit(exit_code) from None


def _verdict(error: Exception) -> tuple[str, int] | None:
    """Return what to say of an error and the exit code; None for typer's own, usage errors and ways out, which it handles."""
    if isinstance(error, BbgrapError):
        return str(error), error.exit_code
    if isinstance(error, BrokenPipeError) or type(error).__module__.startswith("typer."):
        return None
    if isinstance(error, OSError) and error.filename is not None:
        return f"'{error.filename}': {error.strerror or error}", 1
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return _UNWRITTEN.format(error.strerror), 1
    if not isinstance(error, OSError) and (refused := not_granted(error)):
        return f"the system refuses what it needs: {refused}", 1
    what = f"unexpected {type(error).__name__}: {error}"
    return f"{what}; this is a fault of bbgrap: run it again with --debug and report what you see", 1


def _end(number: int, _: object) -> None:
    """End the command with what it has started, and the folders of that; a second signal ends it at once."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


app = typer.Typer(
    cls=_Group,
    name="bbgrap",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def main(
    version: Version = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Run any ONNX model on several CPU machines, block by block.

    Try 'bbgrap demo' first. Without a cluster: 'bbgrap plan zoo:resnet50 --agents 4'.

    Exit codes: 0 done, 1 failed or not verified, 2 usage, 3 cluster unavailable, 4 no access.
    """


_IN_HELP = (demo, inspect, plan, simulate, export, local, serve, nodes, status, top, doctor, submit, bench, trace, up, down, zoo, config)
for command in _IN_HELP:
    app.command()(command)
app.command("exec", context_settings=SETTINGS)(exec_program)
app.add_typer(profile.app, name="profile")
app.add_typer(token.app, name="token")


def run() -> None:
    """Start the command line; what stdout's encoding does not have is written as its number."""
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    for number in stop_signals():
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        with whole_words():
            app(prog_name="bbgrap")
    except SystemExit as end:
        why = write_out()
        if why and not end.code:
            report_error(_UNWRITTEN.format(why))
        sys.exit(end.code or int(bool(why)))
