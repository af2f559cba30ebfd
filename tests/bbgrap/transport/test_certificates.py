import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from bbgrap.errors import RemoteProtocolError
from bbgrap.transport.certificates import MAX_REQUEST_BYTES, Authority, make_request
from bbgrap.transport.tls import TlsIdentity


def request_with(key, *, extensions=()):
    builder = x509.CertificateSigningRequestBuilder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")]))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.DER)


def test_an_identity_is_valid_whatever_the_clock_and_travels_through_a_pipe():
    identity = Authority.make().identity("agent0")
    for content in (identity.certificate, identity.authority):
        shown = x509.load_pem_x509_certificate(content)
        assert shown.not_valid_before_utc.year == 1970
        assert shown.not_valid_after_utc.year == 9999
    assert TlsIdentity.from_bytes(identity.to_bytes()) == identity
    certificate = x509.load_pem_x509_certificate(identity.certificate)
    assert identity.fingerprint == certificate.fingerprint(hashes.SHA256()).hex()
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(identity.authority))


def test_no_key_is_shown():
    authority = Authority.make()
    identity = authority.identity("agent0")
    for secret in (identity.key, authority.key):
        assert secret.splitlines()[1].decode() not in repr(identity) + repr(authority) + str(identity)


def test_an_authority_goes_on_from_its_key_and_certificate():
    first = Authority.make()
    again = Authority(first.key, first.certificate)
    certificate = x509.load_pem_x509_certificate(again.identity("b").certificate)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(first.certificate))


def test_of_a_request_only_the_key_is_taken():
    key = ec.generate_private_key(ec.SECP256R1())
    wishes = (x509.BasicConstraints(ca=True, path_length=None), x509.SubjectAlternativeName([x509.DNSName("coordinator")]))
    certificate = x509.load_pem_x509_certificate(Authority.make().sign(request_with(key, extensions=wishes), "agent7"))
    assert certificate.subject.rfc4514_string() == "CN=agent7"
    assert certificate.public_key() == key.public_key()
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    with pytest.raises(x509.ExtensionNotFound):
        certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_a_long_name_is_cut():
    _, request = make_request("n" * 300)
    assert x509.load_pem_x509_certificate(Authority.make().sign(request, "n" * 300)).subject.rfc4514_string() == "CN=" + "n" * 64


def broken(request):
    return request[:-1] + bytes([request[-1] ^ 1])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: b"", "got other bytes"),
        (lambda: bytes(100), "got other bytes"),
        (lambda: bytes(MAX_REQUEST_BYTES + 1), "expected at most"),
        (lambda: make_request("a")[1][:-20], "got other bytes"),
        (lambda: broken(make_request("a")[1]), "not signed by its own key|got other bytes"),
        (lambda: request_with(ed25519.Ed25519PrivateKey.generate()), "expected a P-256 key"),
        (lambda: request_with(ec.generate_private_key(ec.SECP384R1())), "expected a P-256 key"),
    ],
)
def test_other_requests_are_not_signed(make, says):
    with pytest.raises(RemoteProtocolError, match=says):
        Authority.make().sign(make(), "agent0")


def test_any_bytes_are_refused_or_signed_and_nothing_else():
    authority, (_, request) = Authority.make(), make_request("a")
    for position in range(len(request)):
        changed = request[:position] + bytes([request[position] ^ 0x55]) + request[position + 1 :]
        with pytest.raises(RemoteProtocolError):
            authority.sign(changed, "agent0")
