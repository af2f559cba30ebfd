"""The keys of a cluster on disk: one JSON file that only the coordinator's user can read, written whole or not at all.

Law: a file that cannot be understood is never replaced; without it all tokens would be void.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

from bbgrap.cluster.types import COORDINATOR
from bbgrap.errors import UsageError
from bbgrap.protocol.roles import NODE
from bbgrap.protocol.tokens import Role
from bbgrap.transport.certificates import Authority
from bbgrap.transport.locks import KeyPair
from bbgrap.transport.tls import TlsIdentity
from bbgrap.user_folders import write_all_private

VERSION = 1


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A public key that is or was known, in hex. Times are seconds since 1970, 0 for never.

    Invariants: `kind` is a role's value, or `NODE` with the token's name in `by`.
    """

    key: str
    kind: str
    name: str
    made: float
    expires: float = 0.0
    revoked: float = 0.0
    by: str = ""
    fingerprint: str = ""
    """That of a node's latest certificate."""

    def is_valid(self, now: float) -> bool:
        """Whether it opens anything."""
        return not self.revoked and not (self.expires and self.expires <= now)


@dataclass(frozen=True, slots=True)
class Secrets:
    """What only the coordinator has: its CURVE secret key, the authority for certificates, and what it shows on the data plane."""

    curve: bytes = field(repr=False)
    authority: Authority
    identity: TlsIdentity

    @classmethod
    def make(cls) -> Secrets:
        """Return those of a new cluster."""
        authority = Authority.make()
        return cls(KeyPair.make().secret, authority, authority.identity(COORDINATOR))


@dataclass(frozen=True, slots=True)
class SavedKeys:
    """All that is kept of keys."""

    secrets: Secrets
    entries: tuple[KeyRecord, ...] = ()


def read_keys(path: Path) -> SavedKeys:
    """Return the keys in a file; if there is none, new ones, which are not written yet.

    Raises:
        UsageError: if the file cannot be read, or is no such file.
    """
    try:
        content = path.read_text()
    except FileNotFoundError:
        return SavedKeys(Secrets.make())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"keys '{path}': they cannot be read: {error}") from None
    try:
        found = json.loads(content)
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']}")
        parts = {name: part.encode() for name, part in found["secrets"].items()}
        authority = Authority(parts["authority"], parts["certificate"])
        identity = TlsIdentity(parts["key"], parts["shown"], parts["certificate"])
        secrets = Secrets(bytes.fromhex(parts["curve"].decode()), authority, identity)
        entries = tuple(KeyRecord(**entry) for entry in found["entries"])
        if len(secrets.curve) != 32 or not all(map(_is_sound, entries)):
            raise ValueError("a key is none")
    except Exception as error:  # the parsers of keys and certificates have errors of many kinds
        why = f"{type(error).__name__} {str(error)[:100]}"
        raise UsageError(f"keys '{path}': expected the keys of this cluster, got something else ({why}); restore the file") from None
    return SavedKeys(secrets, entries)


def _is_sound(entry: KeyRecord) -> bool:
    texts = (entry.key, entry.kind, entry.name, entry.by, entry.fingerprint)
    times = (entry.made, entry.expires, entry.revoked)
    kinds = {NODE, *(role.value for role in Role)}
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(at, int | float) for at in times)
        and len(bytes.fromhex(entry.key)) == 32
        and entry.kind in kinds
    )


def write_keys(path: Path, kept: SavedKeys, beside: Mapping[Path, str] = MappingProxyType({})) -> None:
    """Replace the file, and with it others that hold tokens of these keys; when this returns, all are on the disk.

    Raises:
        OSError: if one cannot be written; the old ones are there still.
    """
    own = kept.secrets
    parts = {
        "authority": own.authority.key,
        "certificate": own.authority.certificate,
        "key": own.identity.key,
        "shown": own.identity.certificate,
    }
    secrets = {"curve": own.curve.hex(), **{name: part.decode() for name, part in parts.items()}}
    content = json.dumps({"version": VERSION, "secrets": secrets, "entries": [asdict(entry) for entry in kept.entries]}, indent=1)
    write_all_private({path: content, **beside})
