"""A Sigstore of one's own, made for a test: certificate authority, certificate log, transparency log, trusted root.

What it signs is what the real services sign, with keys that nobody else has: a bundle of it passes the verification
of the `sigstore` package against its own trusted root, and against no other.
"""

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

ISSUER: Final = "https://login.example.test"
IDENTITY: Final = "release@example.test"
NOW: Final = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
_ISSUER_OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_ORIGIN: Final = "log.example.test - 1"


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


@dataclass
class Sigstore:
    """One installation of it; `expires_at` is when its authority's certificate ends."""

    expires_at: datetime = NOW + timedelta(days=3650)
    authority: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    transparency_log: ec.EllipticCurvePrivateKey = field(default_factory=_key)

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example authority")])
        public = self.authority.public_key()
        self.root = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - timedelta(days=30))
            .not_valid_after(self.expires_at)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    def write_trusted_root(self, path: Path) -> Path:
        """The file that an operator keeps."""
        path.write_text(json.dumps(self.trusted_root()))
        return path

    def trusted_root(self) -> dict[str, Any]:
        valid = {"start": (NOW - timedelta(days=30)).isoformat().replace("+00:00", "Z")}
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [_log(self.transparency_log, valid)],
            "ctlogs": [_log(self.certificate_log, valid)],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "example", "commonName": "example authority"},
                    "uri": "https://authority.example.test",
                    "certChain": {"certificates": [{"rawBytes": _b64(_der(self.root))}]},
                    "validFor": valid,
                }
            ],
            "timestampAuthorities": [],
        }

    def sign_digest(
        self, digest: str, *, identity: str = IDENTITY, issuer: str = ISSUER, at: datetime = NOW
    ) -> dict[str, Any]:
        """The bundle of `cosign sign-blob` over something with that SHA-256."""
        key = _key()
        certificate = self._certificate(key, identity, issuer, at)
        raw = bytes.fromhex(digest)
        signature = key.sign(raw, ec.ECDSA(utils.Prehashed(hashes.SHA256())))
        body = {
            "apiVersion": "0.0.1",
            "kind": "hashedrekord",
            "spec": {
                "data": {"hash": {"algorithm": "sha256", "value": digest}},
                "signature": {"content": _b64(signature), "publicKey": {"content": _pem(certificate)}},
            },
        }
        signed = {"messageDigest": {"algorithm": "SHA2_256", "digest": _b64(raw)}, "signature": _b64(signature)}
        return self._bundle(certificate, body, at) | {"messageSignature": signed}

    def sign_statement(self, statement: dict[str, Any], *, at: datetime = NOW) -> dict[str, Any]:
        """The bundle of an in-toto statement, as model signing and attestations make them."""
        key, kind = _key(), "application/vnd.in-toto+json"
        certificate = self._certificate(key, IDENTITY, ISSUER, at)
        payload = json.dumps(statement).encode()
        pae = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
        signature = _sign(key, pae)
        body = {
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": {
                "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(pae).hexdigest()},
                "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
                "signatures": [{"signature": _b64(signature), "verifier": _pem(certificate)}],
            },
        }
        envelope = {"payload": _b64(payload), "payloadType": kind, "signatures": [{"sig": _b64(signature)}]}
        return self._bundle(certificate, body, at) | {"dsseEnvelope": envelope}

    def _certificate(
        self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str, at: datetime
    ) -> x509.Certificate:
        """Ten minutes long, with the certificate log's promise in it."""
        serial = x509.random_serial_number()

        def build(promise: x509.ExtensionType | None) -> x509.Certificate:
            builder = (
                x509.CertificateBuilder()
                .subject_name(x509.Name([]))
                .issuer_name(self.root.subject)
                .public_key(key.public_key())
                .serial_number(serial)
                .not_valid_before(at - timedelta(minutes=1))
                .not_valid_after(at + timedelta(minutes=9))
                .add_extension(_usage(signs_certificates=False), critical=True)
                .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
                .add_extension(
                    x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()), critical=False
                )
                .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(identity)]), critical=True)
                .add_extension(x509.UnrecognizedExtension(_ISSUER_OID, issuer.encode()), critical=False)
            )
            if promise is not None:
                builder = builder.add_extension(promise, critical=False)
            return builder.sign(self.authority, hashes.SHA256())

        return build(self._promise(build(None).tbs_certificate_bytes, at))

    def _promise(self, tbs: bytes, at: datetime) -> x509.ExtensionType:
        """RFC 6962's signed certificate timestamp of a precertificate."""
        log_id = hashlib.sha256(_public(self.certificate_log)).digest()
        milliseconds = int(at.timestamp() * 1000)
        issuer = hashlib.sha256(_public(self.authority)).digest()
        entry = struct.pack("!BBQH", 0, 0, milliseconds, 1) + issuer + len(tbs).to_bytes(3, "big") + tbs + b"\0\0"
        signature = _sign(self.certificate_log, entry)
        sct = struct.pack("!B", 0) + log_id + struct.pack("!QH", milliseconds, 0)
        sct += struct.pack("!BBH", 4, 3, len(signature)) + signature
        listed = struct.pack("!H", len(sct)) + sct
        listed = struct.pack("!H", len(listed)) + listed
        oid = ExtensionOID.PRECERT_SIGNED_CERTIFICATE_TIMESTAMPS
        return x509.UnrecognizedExtension(oid, b"\x04" + _der_length(len(listed)) + listed)

    def _bundle(self, certificate: x509.Certificate, body: dict[str, Any], at: datetime) -> dict[str, Any]:
        """With an entry that is the second of two in the log, and the proof of it."""
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        other = hashlib.sha256(b"\0another entry").digest()
        root = hashlib.sha256(b"\1" + other + hashlib.sha256(b"\0" + canonical).digest()).digest()
        log_id = hashlib.sha256(_public(self.transparency_log)).digest()
        note = f"{_ORIGIN}\n2\n{_b64(root)}\n"
        checkpoint = (
            f"{note}\n\u2014 log.example.test {_b64(log_id[:4] + _sign(self.transparency_log, note.encode()))}\n"
        )
        promised = {
            "body": _b64(canonical),
            "integratedTime": int(at.timestamp()),
            "logID": log_id.hex(),
            "logIndex": 1,
        }
        promise = _sign(self.transparency_log, json.dumps(promised, sort_keys=True, separators=(",", ":")).encode())
        entry = {
            "logIndex": "1",
            "logId": {"keyId": _b64(log_id)},
            "kindVersion": {"kind": body["kind"], "version": body["apiVersion"]},
            "integratedTime": str(int(at.timestamp())),
            "inclusionPromise": {"signedEntryTimestamp": _b64(promise)},
            "inclusionProof": {
                "logIndex": "1",
                "rootHash": _b64(root),
                "treeSize": "2",
                "hashes": [_b64(other)],
                "checkpoint": {"envelope": checkpoint},
            },
            "canonicalizedBody": _b64(canonical),
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {"certificate": {"rawBytes": _b64(_der(certificate))}, "tlogEntries": [entry]},
        }


def _log(key: ec.EllipticCurvePrivateKey, valid: dict[str, str]) -> dict[str, Any]:
    public = _public(key)
    return {
        "baseUrl": "https://log.example.test",
        "hashAlgorithm": "SHA2_256",
        "publicKey": {"rawBytes": _b64(public), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": valid},
        "logId": {"keyId": _b64(hashlib.sha256(public).digest())},
    }


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return _b64(certificate.public_bytes(serialization.Encoding.PEM))


def _der_length(length: int) -> bytes:
    return (
        bytes([length])
        if length < 128
        else bytes([0x81, length])
        if length < 256
        else b"\x82" + length.to_bytes(2, "big")
    )
