"""The keys that a client or an agent uses for a coordinator: given, from a file, from the environment, or found on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from bbgrap.errors import AccessError, UsageError
from bbgrap.protocol.tokens import Token
from bbgrap.transport.local_tokens import find_token
from bbgrap.transport.locks import ClientLock

TOKEN, TOKEN_FILE, INSECURE = "BBGRAP_TOKEN", "BBGRAP_TOKEN_FILE", "BBGRAP_INSECURE"
_YES = ("1", "true", "yes")


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to prove to a coordinator who one is. With nothing given, the environment and then this machine's own coordinators are asked.

    Invariants: `insecure` comes without a token.
    """

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            UsageError: if so.
        """
        if self.insecure and (self.token or self.token_file):
            raise UsageError("access: expected a token or --insecure, got both")

    def is_insecure(self) -> bool:
        """Whether connections shall have no lock, because somebody said so."""
        return self.insecure or (not self.token and not self.token_file and os.environ.get(INSECURE, "").lower() in _YES)

    def environment(self) -> dict[str, str]:
        """Return the variables that give a program these credentials."""
        if self.is_insecure():
            return {INSECURE: "1"}
        file = {TOKEN_FILE: str(self.token_file.absolute())} if self.token_file else {}
        return {TOKEN: self.token} if self.token else file

    def lock(self, address: str) -> ClientLock | None:
        """Return the keys for a coordinator, as they are now: a file may have been replaced. None for no lock.

        Raises:
            AccessError: if there is no token, or what is there is none.
        """
        if self.is_insecure():
            return None
        if self.token:
            return ClientLock.of(Token.parse(self.token, "the token given"), "the token given")
        file = self.token_file or (Path(os.environ[TOKEN_FILE]) if os.environ.get(TOKEN_FILE) else None)
        if file is None and os.environ.get(TOKEN):
            return ClientLock.of(Token.parse(os.environ[TOKEN], TOKEN), f"the token in {TOKEN}")
        file = file or find_token(address)
        if file is None:
            raise AccessError(
                f"the coordinator at {address} wants a token: give --token-file FILE, or set {TOKEN};"
                " 'bbgrap token create NAME' makes one on the coordinator's machine, for agents with --role agent."
                " A coordinator of your own on this machine needs none: start it first"
            )
        source = f"token file '{file}'"
        try:
            text = file.read_text("utf-8-sig")  # editors of Windows begin with a mark
        except (OSError, UnicodeDecodeError) as error:
            raise AccessError(f"{source}: it cannot be read: {getattr(error, 'strerror', None) or error}") from None
        return ClientLock.of(Token.parse(text, source), source)
