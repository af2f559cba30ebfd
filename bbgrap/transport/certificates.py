"""Certificates of the data plane: the cluster's own authority, requests for certificates, and what a node shows to its peers.

    node: make_request -> request -> control connection -> Authority.sign -> certificate -> Identity

A certificate says that this cluster has let a node in; which node it is, is said by its fingerprint, which the coordinator tells the
peers. So dates would protect nothing, and a machine whose clock is wrong could not work: certificates are valid for ever. Laws: of a
request only the key goes into the certificate; a key is on no disk but where the caller puts it, and in no `repr`.
"""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bbgrap.errors import RemoteProtocolError
from bbgrap.transport.tls import TlsIdentity

MAX_REQUEST_BYTES = 4 << 10
"""A signing request has some 250 bytes."""
_FOR_EVER = (datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC))
"""The last second is how a certificate says that it has no end (RFC 5280, 4.1.2.5)."""
_AUTHORITY_NAME = "bbgrap cluster"
_MAX_NAME = 64


class Authority:
    """Signs the certificates of one cluster.

    Invariants: `certificate` (PEM) is that of the key.
    """

    def __init__(self, key: bytes, certificate: bytes) -> None:
        """Go on with the key and the certificate (PEM) of `make`."""
        loaded = serialization.load_pem_private_key(key, None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("authority: expected a P-256 key")  # noqa: TRY004 - the bytes are wrong, not the type
        self._key = loaded
        self.key = key
        self.certificate = certificate

    def __repr__(self) -> str:
        """Show nothing of the key."""
        return "Authority(...)"

    @staticmethod
    def make() -> Authority:
        """Make a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named(_AUTHORITY_NAME)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), *_FOR_EVER)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return Authority(_key_pem(key), _pem(certificate))

    def sign(self, request: bytes, name: str) -> bytes:
        """Return a certificate (PEM) of this name for the key of a request (DER).

        Raises:
            RemoteProtocolError: if the request is none, is not signed by its own key, or has a key of another kind.
        """
        who = f"signing request of '{name}'"
        if len(request) > MAX_REQUEST_BYTES:
            raise RemoteProtocolError(f"{who}: expected at most {MAX_REQUEST_BYTES} bytes, got {len(request)}")
        try:
            asked = x509.load_der_x509_csr(request)
            key, signed = asked.public_key(), asked.is_signature_valid
        except Exception as error:  # its parser has errors of several kinds, and no list of them
            raise RemoteProtocolError(f"{who}: expected a request of `make_request`, got other bytes") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise RemoteProtocolError(f"{who}: expected a P-256 key, got another kind")
        if not signed:
            raise RemoteProtocolError(f"{who}: it is not signed by its own key")
        mine = x509.load_pem_x509_certificate(self.certificate)
        certificate = (
            x509.CertificateBuilder(mine.subject, _named(name), key, x509.random_serial_number(), *_FOR_EVER)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return _pem(certificate)

    def identity(self, name: str) -> TlsIdentity:
        """Return a new key with its certificate: for the coordinator itself, and for clusters of one process."""
        key, request = make_request(name)
        return TlsIdentity(key, self.sign(request, name), self.certificate)


def make_request(name: str) -> tuple[bytes, bytes]:
    """Return a new key (PEM) and a request to sign it (DER)."""
    # P-256 and Ed25519 shake hands equally fast (0.7 ms a side, measured); P-256 is in every build of OpenSSL.
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder(_named(name)).sign(key, hashes.SHA256())
    return _key_pem(key), request.public_bytes(serialization.Encoding.DER)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_MAX_NAME] or "node")])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
