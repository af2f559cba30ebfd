"""`bbgrap token`: who may use a cluster: keys are made, listed, taken back and replaced here."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from bbgrap.cli.completion import keys
from bbgrap.cli.options import Json, Where, takes, where_is
from bbgrap.cli.output import print_json, print_result, print_table, say
from bbgrap.errors import UsageError

if TYPE_CHECKING:
    from bbgrap.protocol.key_messages import KeyStatus

app = typer.Typer(no_args_is_help=True, help="Make, list, take back and replace the keys of a cluster.")

RoleName = Annotated[
    str,
    typer.Option("--role", help="reader (may look), client (may run models), agent (may enrol nodes) or admin (may do all)."),
]
Lasts = Annotated[str, typer.Option("--lasts", help="Until when it can be used: 90s, 15m, 12h, 30d; empty: until it is revoked.")]
Grace = Annotated[str, typer.Option("--grace", help="How long the old token goes on: 90s, 15m, 12h, 30d.")]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command()
@takes(where=where_is)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it, for example who will use it.", show_default=False)],
    role: RoleName = "client",
    lasts: Lasts = "",
    *,
    where: Where,
) -> None:
    """Make a token and print it, once. Whoever has it may do what its role may.

    Example:
        bbgrap token create laptop --role client
    """
    seconds = _seconds(lasts, "--lasts") if lasts else 0.0
    if lasts and not seconds:  # to a coordinator that is for ever
        raise UsageError(f"--lasts: expected more than 0s, got '{lasts}'")
    with where.open() as cluster:
        text = cluster.create_token(name, role, seconds)
    print_result(text)
    say(f"token '{name}' of role {role}; keep it in a file that only its user can read, and give it by --token-file or BBGRAP_TOKEN")


@app.command("list")
@takes(where=where_is)
def list_(where: Where, as_json: Json = False) -> None:
    """List tokens and enrolled nodes, those taken back among them.

    Example:
        bbgrap token list
    """
    with where.open() as cluster:
        found = cluster.tokens()
    _show(found, as_json)


@app.command()
@takes(where=where_is)
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token, or the node.", show_default=False, autocompletion=keys)],
    *,
    where: Where,
) -> None:
    """Take a key back, at once: connections that use it end within a second.

    A node that is taken back can enrol again with a token, so take that back, too, if it may be known.

    Example:
        bbgrap token revoke guest
    """
    with where.open() as cluster:
        found = cluster.revoke_token(name)
    gone = max((key for key in found if key.name == name and key.revoked), key=lambda key: key.revoked)
    say(f"{gone.kind} '{name}' is taken back")
    by = next((key for key in found if key.name == gone.by and not key.revoked), None)
    if by is not None and by.name != "local":
        say(f"whoever has token '{by.name}', with which it was enrolled, can enrol it again; 'bbgrap token rotate {by.name}' prevents that")
    others = [key.name for key in found if key.by == name and not key.revoked]
    if others:
        say(f"nodes that were enrolled with it stay: {', '.join(others)}")


@app.command()
@takes(where=where_is)
def rotate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token.", show_default=False, autocompletion=keys)],
    grace: Grace = "1h",
    *,
    where: Where,
) -> None:
    """Replace a token: print a new one, while the old one goes on for a while.

    Programs that were given a token file take the new one from it by themselves; no request is lost.

    Example:
        bbgrap token rotate join --grace 15m
    """
    seconds = _seconds(grace, "--grace")
    with where.open() as cluster:
        text = cluster.rotate_token(name, seconds)
    print_result(text)
    say(f"token '{name}' is replaced; the old one can be used for {grace} more")


def _seconds(text: str, option: str) -> float:
    number, unit = text[:-1], text[-1:]
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise UsageError(f"{option}: expected a time like 90s, 15m, 12h or 30d, got '{text}'") from None
    if not 0 <= seconds <= 100 * 365 * 86_400:
        raise UsageError(f"{option}: expected 0s to 100 years, got '{text}'")
    return seconds


def _show(keys: tuple[KeyStatus, ...], as_json: bool) -> None:
    if as_json:
        print_json([asdict(key) for key in keys])
        return
    rows = [
        (key.name, key.kind, key.key[:12], _date(key.made), _state(key), key.connections, key.by)
        for key in sorted(keys, key=lambda key: (bool(key.revoked), key.kind, key.name))
    ]
    print_table(("name", "role", "key", "made", "state", "connections", "enrolled with"), rows)


def _state(key: KeyStatus) -> str:
    if key.revoked:
        return f"revoked {_date(key.revoked)}"
    if not key.expires:
        return "valid"
    return f"{'until' if key.valid else 'expired'} {_date(key.expires)}"


def _date(seconds: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
