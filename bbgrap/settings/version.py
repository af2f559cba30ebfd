"""`--version`, the same in every program: what decides whether two machines go together."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

from bbgrap.own_code import full_version


def _show(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"{context.info_name} {full_version()} (onnxruntime {version('onnxruntime')}, Python {platform.python_version()})")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Show the version and exit.", callback=_show, is_eager=True, show_envvar=False)]
