"""Tokens: what a person pastes so that a program may use a cluster.

    bbgrap-ROLE-base64url( the coordinator's public key 32 | this token's secret key 32 | the first bytes of their SHA-256 4 )

Both are CURVE keys, so whoever has a token knows the coordinator by its key, and is known by the token's. The role is written in it for
people; what counts is the coordinator's list. Law: `Token.parse(token.text) == token`, and a text that is cut or mistyped is refused here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field
from enum import Enum

from bbgrap.errors import AccessError

KEY_BYTES = 32
_CHECK_BYTES = 4


class Role(Enum):
    """What a token is for."""

    READER = "reader"
    """May look: which nodes are there, what is known of them, and how they are."""
    CLIENT = "client"
    """May bring models and run requests."""
    AGENT = "agent"
    """May enrol nodes, which compute."""
    ADMIN = "admin"
    """May do all that, and change profiles, measure, and make and take back tokens."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token; its text is a secret, and no part of its representation."""

    role: Role
    server: bytes
    secret: bytes = field(repr=False)

    @property
    def text(self) -> str:
        """What people paste."""
        keys = self.server + self.secret
        return f"bbgrap-{self.role.value}-{base64.urlsafe_b64encode(keys + _check(keys)).decode().rstrip('=')}"

    @classmethod
    def parse(cls, text: str, source: str) -> Token:
        """Read a token; `source` says where it was found.

        Raises:
            AccessError: if it is none; the text itself is not in the message.
        """
        mark, _, rest = text.strip().partition("-")
        role, _, body = rest.partition("-")
        try:
            content = base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            content = b""
        keys, check = content[: 2 * KEY_BYTES], content[2 * KEY_BYTES :]
        if mark != "bbgrap" or role not in {each.value for each in Role} or len(keys) != 2 * KEY_BYTES or check != _check(keys):
            raise AccessError(
                f"{source}: expected a token like 'bbgrap-client-...' as it was printed, got {len(text.strip())} characters that are none;"
                " was it cut?"
            )
        return cls(Role(role), keys[:KEY_BYTES], keys[KEY_BYTES:])


def _check(keys: bytes) -> bytes:
    return hashlib.sha256(keys).digest()[:_CHECK_BYTES]
