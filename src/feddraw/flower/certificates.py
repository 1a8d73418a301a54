"""TLS certificates of a federation's server: an authority of the federation's own, and the
certificate of the server, which the authority signs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from feddraw.errors import UserError
from feddraw.secure.sums.signing_keys import read_key_file, write_key_file

AUTHORITY_DAYS = 3650
SERVER_DAYS = 397  # longer ones are refused by some TLS libraries
CLOCK_DIFFERENCE = timedelta(hours=1)  # a site's clock may be behind the operator's
LOOPBACK_NAMES = ("localhost", "127.0.0.1")  # nginx and `flwr` reach the SuperLink under these


def make_authority(key_file: Path, certificate_file: Path) -> None:
    """A new authority: its private key (0600) and its certificate, ten years valid."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _common_name("feddraw federation")
    usage = _key_usage(signs_certificates=True)
    certificate = (
        _builder(subject=name, issuer=name, days=AUTHORITY_DAYS)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_key_file(key_file, _private_pem(key), 0o600)
    write_key_file(certificate_file, _certificate_pem(certificate), 0o644)


def make_server_certificate(
    host: str, authority_key: Path, authority_certificate: Path
) -> tuple[bytes, bytes]:
    """A new private key and a certificate for the server, both as PEM, signed by the authority.

    It is valid for the name or address that sites know, and for loopback.
    """
    issuer_key = _read_authority_key(authority_key)
    issuer = x509.load_pem_x509_certificate(read_key_file(authority_certificate))
    if issuer.public_key() != issuer_key.public_key():
        raise UserError(
            f"{authority_certificate} is not the certificate of {authority_key}: put back the one"
            " that `feddraw operator init` wrote"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    names = dict.fromkeys((host, *LOOPBACK_NAMES))
    certificate = (
        _builder(subject=_common_name(host), issuer=issuer.subject, days=SERVER_DAYS)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, names))), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
    return _private_pem(key), _certificate_pem(certificate)


def read_root_certificates(path: Path) -> str:
    """The text of a file of certificates; it is given to others, so nothing else may be in it."""
    content = read_key_file(path)
    check_root_certificates(content, str(path))
    return content.decode()


def check_root_certificates(content: bytes, where: str) -> None:
    """Raise unless these are certificates in PEM, and no private key is among them."""
    if b"PRIVATE KEY" in content:
        raise UserError(f"{where} holds a private key: remove it, certificates only belong there")
    try:
        content.decode("ascii")
        x509.load_pem_x509_certificates(content)
    except ValueError:
        raise UserError(f"{where} is no certificate in PEM") from None


def _read_authority_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_key_file(path), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is not the authority's key that `feddraw operator init` wrote")
    return key


def _builder(subject: x509.Name, issuer: x509.Name, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_DIFFERENCE)
        .not_valid_after(now + timedelta(days=days))
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
