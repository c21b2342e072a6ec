"""Certificates for tests, signed by themselves."""

import base64
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificate(end: datetime) -> tuple[str, str]:
    """PEM of a certificate that expires at `end`, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "127.0.0.1")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, end - timedelta(days=9), end)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = builder.add_extension(here, critical=False)
    signed = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return signed, key.private_bytes(serialization.Encoding.PEM, *plain).decode()


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
