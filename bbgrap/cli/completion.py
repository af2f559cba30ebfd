"""What a shell proposes for a word that is not complete: models, planners, and the names that a cluster knows.

Completing never prints an error and never takes long: where something cannot be asked, nothing is proposed.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from bbgrap.session import Connection

_INSTRUCTION, _WORDS, _PLACE = "_BBGRAP_COMPLETE", "COMP_WORDS", "COMP_CWORD"
_WITHIN_S = 1.0
"""How long a coordinator may take to answer. Chosen: whoever pressed Tab waits."""


@contextmanager
def whole_words() -> Iterator[None]:
    """Undo bash's habit of taking `zoo:tiny` for three words, in what it hands to Typer, and do as it wishes with what Typer answers."""
    if os.environ.get(_INSTRUCTION) != "complete_bash":
        yield
        return
    words, place = rejoined(os.environ[_WORDS].split("\n"), int(os.environ[_PLACE]))
    os.environ[_WORDS], os.environ[_PLACE] = "\n".join(words), str(place)
    word = words[place] if place < len(words) else ""
    answer = io.StringIO()
    try:
        with redirect_stdout(answer):
            yield
    finally:  # Typer exits
        for line in answer.getvalue().splitlines():
            # Bash replaces only what is behind the last separator.
            sys.stdout.write(line[max(word.rfind(":"), word.rfind("=")) + 1 :] + "\n")


def rejoined(words: list[str], place: int) -> tuple[list[str], int]:
    """Return words as they were typed, and the place of the one that was at `place`."""
    joined: list[str] = []
    found, glue = place, False
    for number, word in enumerate(words):
        is_separator = word != "" and set(word) <= {":", "="}
        if joined and (is_separator or glue):
            joined[-1] += word
        else:
            joined.append(word)
        glue = is_separator
        if number == place:
            found = len(joined) - 1
    return joined, found


def models(incomplete: str) -> list[str]:
    """Propose the zoo's networks, and .onnx files and folders beside."""
    found: list[str] = []
    with suppress(Exception):
        if "zoo:".startswith(incomplete[:4]):
            from bbgrap.zoo import names

            found = [f"zoo:{name}" for name in names()]
        folder = incomplete.rpartition("/")[0]
        for path in sorted(Path(folder or ("/" if incomplete.startswith("/") else ".")).iterdir()):
            if path.suffix == ".onnx" or path.is_dir():
                found.append(f"{folder + '/' if '/' in incomplete else ''}{path.name}{'/' if path.is_dir() else ''}")
    return [each for each in found if each.startswith(incomplete)]


def planners(incomplete: str) -> list[str]:
    """Propose planners; behind a comma, one more."""
    with suppress(Exception):
        from bbgrap.planners.registry import NAMES

        before, comma, _ = incomplete.rpartition(",")
        found = [f"{before}{comma}{name}" for name in NAMES if name not in before.split(",")]
        return [each for each in found if each.startswith(incomplete)]
    return []


def nodes(context: typer.Context, incomplete: str) -> list[str]:
    """Propose the nodes of the cluster that the command would use."""
    return _asked(context, incomplete, lambda connection: (node.name for node in connection.nodes()))


def keys(context: typer.Context, incomplete: str) -> list[str]:
    """Propose the names of tokens and enrolled nodes that are not taken back."""
    return _asked(context, incomplete, lambda connection: (key.name for key in connection.tokens() if not key.revoked))


def _asked(context: typer.Context, incomplete: str, ask: Callable[[Connection], Iterable[str]]) -> list[str]:
    with suppress(Exception):
        from bbgrap.session import connect

        address, token_file, insecure = (context.params.get(name) for name in ("coordinator", "token_file", "insecure"))
        with connect(str(address), _WITHIN_S, token_file=token_file, insecure=bool(insecure)) as connection:
            return [name for name in sorted(set(ask(connection))) if name.startswith(incomplete)]
    return []
