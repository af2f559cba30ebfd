"""The control messages about keys: how nodes enrol keys of their own, and how tokens are made and taken back; see `messages` for the laws.

Keys are public CURVE keys of 32 bytes in hex. A secret travels in `TokenMade` only, over a connection that is encrypted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bbgrap.protocol.limits import Digest, Length, Text

MAX_CERTIFICATE_BYTES = 8 << 10
"""A certificate (PEM), or a request for one (DER); those made here take 250 to 800 bytes."""
MAX_KEY_NAME_BYTES = 200

Key = Digest
"""A public key in hex has the form of a digest."""
Certificate = Annotated[bytes, Length(MAX_CERTIFICATE_BYTES)]
KeyName = Annotated[str, Length(MAX_KEY_NAME_BYTES)]


@dataclass(frozen=True, slots=True)
class Enrol:
    """From a node, with a token's key or its own: use this key for the node of that name, and sign this request (empty: none)."""

    name: KeyName
    key: Key
    request: Certificate


@dataclass(frozen=True, slots=True)
class Enrolled:
    """Answer to `Enrol`: join with your own key. Without a certificate, tensors travel unencrypted."""

    certificate: Certificate
    authority: Certificate


@dataclass(frozen=True, slots=True)
class CreateToken:
    """Make a token; `lasts_s` is 0 for one that does not expire."""

    call: int
    role: KeyName
    name: KeyName
    lasts_s: float


@dataclass(frozen=True, slots=True)
class ListTokens:
    """Which tokens and enrolled nodes are there?"""

    call: int


@dataclass(frozen=True, slots=True)
class RevokeToken:
    """Take back the key of a token or node, now; connections that use it end."""

    call: int
    name: KeyName


@dataclass(frozen=True, slots=True)
class RotateToken:
    """Make a new token of this name; the old one goes on for `grace_s`."""

    call: int
    name: KeyName
    grace_s: float


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """What is known of a key. Times are seconds since 1970, 0 for never; `by` is the token that a node was enrolled with.

    `valid` is whether it opens anything now, by the clock that decides that: the coordinator's.
    """

    name: KeyName
    kind: KeyName
    key: Key
    made: float
    expires: float
    revoked: float
    by: KeyName
    connections: int
    valid: bool = True


@dataclass(frozen=True, slots=True)
class TokenMade:
    """Answer to `CreateToken` and `RotateToken`: the token, which is never shown again."""

    call: int
    token: Text


@dataclass(frozen=True, slots=True)
class Tokens:
    """Answer to `ListTokens` and `RevokeToken`."""

    call: int
    keys: tuple[KeyStatus, ...]


TokenCall = CreateToken | ListTokens | RevokeToken | RotateToken
KeyMessage = Enrol | TokenCall
