"""What a node shows to its peers on the data plane: read by processes that make no certificates, and so without the library that does."""

from __future__ import annotations

import hashlib
import json
import ssl
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """What a node shows on the data plane, and whom it believes: all PEM."""

    key: bytes = field(repr=False)
    certificate: bytes
    authority: bytes
    """The certificate of the authority that peers must have theirs from."""

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the certificate (DER), in hex."""
        return fingerprint_of(ssl.PEM_cert_to_DER_cert(self.certificate.decode()))

    def to_bytes(self) -> bytes:
        """Return all of it, with the key, for a pipe to a child."""
        return json.dumps([part.decode() for part in (self.key, self.certificate, self.authority)]).encode()

    @staticmethod
    def from_bytes(content: bytes) -> TlsIdentity:
        """Undo `to_bytes`."""
        return TlsIdentity(*(part.encode() for part in json.loads(content)))


def fingerprint_of(certificate: bytes) -> str:
    """Return the fingerprint of a certificate (DER)."""
    return hashlib.sha256(certificate).hexdigest()
