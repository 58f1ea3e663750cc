"""Sigstore bundles (cosign sign-blob, model signing) verified against a trusted root that the operator keeps. Offline.

What a bundle vouches for is a SHA-256: of the manifest's canonical bytes, of an artefact's only file, or of every file
(an in-toto statement). It is made of a short-lived certificate, a signature, and an entry of a transparency log with
the proof that it is in there; all of that is checked by the `sigstore` package, which is imported only here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from gpupool.policies.manifest import Manifest, digest

MOST_BUNDLE_BYTES: Final = 4 << 20
_IN_TOTO: Final = "application/vnd.in-toto+json"


class SignatureRefused(ValueError):
    """The bundle does not vouch for the artefact; the message is a sentence."""


class Covers(StrEnum):
    """What was signed."""

    MANIFEST = "manifest"
    FILES = "files"  # each file's SHA-256; tree digests beside them are nobody's word


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom to believe. Any of the identities, as the issuer names them in its certificates."""

    root: Path
    identities: tuple[str, ...]
    issuer: str


@dataclass(frozen=True, slots=True)
class Signed:
    """A bundle that was found good; `at` in seconds since the epoch, None where no log told the time."""

    covers: Covers
    identity: str
    issuer: str
    at: int | None


class _Resource(msgspec.Struct):
    name: str = ""
    digest: Any = None
    algorithm: str = ""


class _Predicate(msgspec.Struct):
    resources: list[_Resource] = []


class _Subject(msgspec.Struct):
    digest: dict[str, str] = {}


class _Statement(msgspec.Struct):
    subject: list[_Subject] = []
    predicate: Any = None


_statements = msgspec.json.Decoder(_Statement)


def verify_signature(bundle: bytes, manifest: Manifest, trust: Trust) -> Signed:
    """Whether the bundle vouches for the artefact that the manifest names. Raises SignatureRefused.

    Needs nothing but the files it is given; blocks for some milliseconds.
    """
    from cryptography.x509 import UnsupportedGeneralNameType
    from pydantic import ValidationError
    from sigstore.errors import Error
    from sigstore.models import Bundle
    from sigstore.verify import policy

    if len(bundle) > MOST_BUNDLE_BYTES:
        raise SignatureRefused(f"The bundle is larger than {MOST_BUNDLE_BYTES} bytes.")
    verifier = _verifier(trust)
    try:
        parsed = Bundle.from_json(bundle)
        expected = policy.AnyOf([policy.Identity(identity=who, issuer=trust.issuer) for who in trust.identities])
        covers = _verify(verifier, parsed, expected, manifest)
        identity = _identity(parsed.signing_certificate, trust.identities)
        at = parsed.log_entry._inner.integrated_time
    except (Error, ValidationError, ValueError, UnsupportedGeneralNameType, RecursionError) as error:
        if isinstance(error, SignatureRefused):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SignatureRefused(f"The bundle is not a good signature: {reason[:300]}.") from error
    return Signed(covers=covers, identity=identity, issuer=trust.issuer, at=at)


def _verifier(trust: Trust) -> Any:
    from sigstore.errors import Error
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    try:
        return Verifier(trusted_root=TrustedRoot.from_file(str(trust.root)))
    except OSError as error:
        raise SignatureRefused(f"The trusted root {trust.root} cannot be read: {error.strerror}.") from error
    except (Error, ValueError) as error:
        raise SignatureRefused(f"{trust.root} is not a Sigstore trusted root.") from error


def _verify(verifier: Any, bundle: Any, expected: Any, manifest: Manifest) -> Covers:
    from sigstore.hashes import Hashed
    from sigstore_models.common.v1 import HashAlgorithm

    if bundle._dsse_envelope is not None:
        kind, payload = verifier.verify_dsse(bundle, expected)
        if kind != _IN_TOTO:
            raise SignatureRefused(f"The bundle has a statement of the type {kind[:80]!r}, not in-toto's.")
        return _covered(payload, manifest)
    signature = bundle._inner.message_signature
    stated = signature.message_digest.digest.hex() if signature is not None and signature.message_digest else None
    whole = digest(manifest)
    only = manifest.files[0].sha256 if len(manifest.files) == 1 else None
    if stated is not None and stated not in (whole, only):
        raise SignatureRefused(
            f"The bundle is of something else: it signs SHA-256 {stated}, the manifest's is {whole}"
            + (f" and the file's {only}." if only else ".")
        )
    covers = Covers.FILES if stated is not None and stated == only else Covers.MANIFEST
    signed = only if covers is Covers.FILES else whole
    assert signed is not None
    verifier.verify_artifact(Hashed(algorithm=HashAlgorithm.SHA2_256, digest=bytes.fromhex(signed)), bundle, expected)
    return covers


def _covered(payload: bytes, manifest: Manifest) -> Covers:
    try:
        statement = _statements.decode(payload)
        predicate = msgspec.convert(statement.predicate or {}, _Predicate)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SignatureRefused("The bundle's statement is not in-toto's.") from error
    named = {subject.digest.get("sha256", "") for subject in statement.subject}
    if digest(manifest) in named:
        return Covers.MANIFEST
    wanted = {file.path: file.sha256 for file in manifest.files}
    if named >= set(wanted.values()) or _resources(predicate.resources) == wanted:
        return Covers.FILES
    raise SignatureRefused("The bundle's statement does not name every file of the artefact with its SHA-256.")


def _resources(resources: Iterable[_Resource]) -> Mapping[str, str]:
    """Files by path, as the model signing specification lists them."""
    return {one.name: str(one.digest) for one in resources if one.algorithm == "sha256"}


def _identity(certificate: Any, identities: tuple[str, ...]) -> str:
    from cryptography.x509 import RFC822Name, SubjectAlternativeName, UniformResourceIdentifier

    names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    said = [*names.get_values_for_type(RFC822Name), *names.get_values_for_type(UniformResourceIdentifier)]
    return next((str(name) for name in said if name in identities), identities[0])
