"""TLS 1.3 on the data plane: what nodes show to their peers, contexts, and errors in words.

OpenSSL writes and reads one record of 16 KiB in a call, and each costs system calls. Measured on one core each: SSLSocket is faster than
MemoryBIO up to 64 KiB, and simpler; of what comes nothing stays in OpenSSL but the record that is incomplete.
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bbgrap.transport.shared_memory import make_memory


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """What a node shows on the data plane, and whom it believes: all PEM.

    It is read by processes that make no certificates, and so without the library that does.
    """

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


RECORD_ON_WIRE = (16 << 10) + 256 + 5
"""The most that a record may take on the network (RFC 8446, 5.2)."""
_OWN_FILES = Path("/proc/self/fd")
"""Paths of what this process has open; in a folder that somebody made the root of a system there may be none."""
HANDSHAKE_S = 3.0
"""How long a handshake may take. Chosen: it computes for 2 ms, and its partner may be busy."""


def server_context(identity: TlsIdentity) -> ssl.SSLContext:
    """Return what connections of others to an identity are made with."""
    context = client_context(identity, ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # every connection is a whole handshake: nothing else would ask for the certificate
    return context


def client_context(identity: TlsIdentity, side: int = ssl.PROTOCOL_TLS_CLIENT) -> ssl.SSLContext:
    """Return what connections of an identity to others are made with; the key stays in memory."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the fingerprint says who it is
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity.authority.decode())
    with _path_of(identity.key + identity.certificate) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _path_of(content: bytes) -> Iterator[str]:
    """Give a path at which OpenSSL can read something: in memory, or where that has none in a file that only this user can read."""
    descriptor = make_memory("identity") if _OWN_FILES.is_dir() else None
    if descriptor is None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
        return
    try:
        os.write(descriptor, content)
        yield str(_OWN_FILES / str(descriptor))
    finally:
        os.close(descriptor)


def peer_of(connection: ssl.SSLSocket) -> str:
    """Return the fingerprint of the other side's certificate, after the handshake."""
    certificate = connection.getpeercert(binary_form=True)
    return fingerprint_of(certificate) if certificate else ""


_PLAIN = "it does not speak TLS 1.3; is one side started with --insecure, or the coordinator with --data-plane=plain?"
_ENDED = (
    "the other side ended the connection in the handshake, as one does that ends itself; "
    "if it goes on, is one side started with --insecure, or the coordinator with --data-plane=plain?"
)
_NOT_OURS = "it does not take this node's certificate; has the key been revoked, or is it of another cluster?"


def reason_of(error: OSError) -> str:
    """Return in words why a connection broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this cluster: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return _ENDED
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if "ALERT" in reason:
            return f"{_NOT_OURS} ({reason.lower().replace('_', ' ')})" if "VERSION" not in reason else _PLAIN
        if reason in {"PEER_DID_NOT_RETURN_A_CERTIFICATE", "NO_CERTIFICATE"}:
            return "it shows no certificate"
        return f"{_PLAIN} ({reason.lower().replace('_', ' ')})"
    return error.strerror or str(error)
