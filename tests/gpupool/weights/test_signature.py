"""Signatures of artefacts: bundles are made by a Sigstore of the test's own; whatever is wrong with one is refused."""

import copy
import json
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpupool.policies.manifest import Manifest, digest
from gpupool.weights.hashing import make_manifest
from gpupool.weights.signature import Covers, SignatureRefused, Signed, Trust, verify_signature
from tests.doubles.sigstore import IDENTITY, ISSUER, NOW, Sigstore

Bundle = dict[str, Any]


class Desk:
    """An artefact, a Sigstore, and the trust that an operator put into it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "model.gguf"
        self.file.write_bytes(b"GGUF and so on")
        self.folder = folder
        self.sigstore = Sigstore()
        self.trust = self.trusting(self.sigstore)

    @property
    def manifest(self) -> Manifest:
        return make_manifest(self.file)

    def trusting(self, sigstore: Sigstore, *, identity: str = IDENTITY, issuer: str = ISSUER) -> Trust:
        return Trust(sigstore.write_trusted_root(self.folder / "trusted_root.json"), (identity,), issuer)

    def verify(self, bundle: Bundle, *, trust: Trust | None = None) -> Signed:
        return verify_signature(json.dumps(bundle).encode(), self.manifest, trust or self.trust)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Verification is offline.")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return Desk(tmp_path)


@pytest.mark.shows("R68")
def test_a_bundle_over_the_manifest_is_good_without_any_network(desk: Desk) -> None:
    signed = desk.verify(desk.sigstore.sign_digest(digest(desk.manifest)))
    assert signed == Signed(Covers.MANIFEST, IDENTITY, ISSUER, int(NOW.timestamp()))


def test_a_bundle_over_the_only_file_covers_that_file(desk: Desk) -> None:
    assert desk.verify(desk.sigstore.sign_digest(desk.manifest.files[0].sha256)).covers is Covers.FILES


@pytest.mark.parametrize("resources", [False, True])
def test_a_statement_that_names_every_file_covers_them(desk: Desk, resources: bool) -> None:
    file = desk.manifest.files[0]
    named = {"subject": [{"name": file.path, "digest": {"sha256": file.sha256}}]}
    listed = {
        "subject": [{"name": "model", "digest": {"sha256": "0" * 64}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {"resources": [{"name": file.path, "algorithm": "sha256", "digest": file.sha256}]},
    }
    statement = {"_type": "https://in-toto.io/Statement/v1"} | (listed if resources else named)
    assert desk.verify(desk.sigstore.sign_statement(statement)).covers is Covers.FILES


@pytest.mark.shows("R68")
def test_another_artefact_is_refused(desk: Desk) -> None:
    bundle = desk.sigstore.sign_digest(digest(desk.manifest))
    statement = desk.sigstore.sign_statement({"subject": [{"digest": {"sha256": desk.manifest.files[0].sha256}}]})
    assert desk.verify(statement).covers is Covers.FILES
    desk.file.write_bytes(b"GGUF and something else")
    with pytest.raises(SignatureRefused, match="is of something else"):
        desk.verify(bundle)
    with pytest.raises(SignatureRefused, match="does not name every file"):
        desk.verify(statement)


@pytest.mark.parametrize(
    ("identity", "issuer"), [("somebody@example.test", ISSUER), (IDENTITY, "https://elsewhere.example.test")]
)
def test_another_signer_is_refused(desk: Desk, identity: str, issuer: str) -> None:
    bundle = desk.sigstore.sign_digest(digest(desk.manifest), identity=identity, issuer=issuer)
    with pytest.raises(SignatureRefused, match="not a good signature"):
        desk.verify(bundle)


def test_another_sigstore_is_refused(desk: Desk) -> None:
    with pytest.raises(SignatureRefused, match="not a good signature"):
        desk.verify(Sigstore().sign_digest(digest(desk.manifest)))


def test_a_root_that_had_expired_when_it_was_signed_is_refused(desk: Desk) -> None:
    old = Sigstore(expires_at=NOW - timedelta(days=1))
    with pytest.raises(SignatureRefused, match="not a good signature"):
        desk.verify(old.sign_digest(digest(desk.manifest)), trust=desk.trusting(old))
    before = NOW - timedelta(days=2)
    assert desk.verify(old.sign_digest(digest(desk.manifest), at=before), trust=desk.trusting(old)).covers


def _flipped(text: str) -> str:
    return ("B" if text[20] == "A" else "A").join((text[:20], text[21:]))


def _entry(bundle: Bundle) -> Bundle:
    entry: Bundle = bundle["verificationMaterial"]["tlogEntries"][0]
    return entry


def _break_signature(bundle: Bundle) -> None:
    bundle["messageSignature"]["signature"] = _flipped(bundle["messageSignature"]["signature"])


def _break_promise(bundle: Bundle) -> None:
    _entry(bundle)["inclusionPromise"]["signedEntryTimestamp"] = "AAAA"


def _break_proof(bundle: Bundle) -> None:
    _entry(bundle)["inclusionProof"]["hashes"] = ["A" * 43 + "="]


def _forget_time(bundle: Bundle) -> None:
    del _entry(bundle)["inclusionPromise"]


def _later(bundle: Bundle) -> None:
    _entry(bundle)["integratedTime"] = str(int(NOW.timestamp()) + 3600)


def _two_entries(bundle: Bundle) -> None:
    bundle["verificationMaterial"]["tlogEntries"] *= 2


@pytest.mark.shows("R68")
@pytest.mark.parametrize(
    "damage", [_break_signature, _break_promise, _break_proof, _forget_time, _later, _two_entries, dict.clear]
)
def test_every_part_of_a_bundle_counts(desk: Desk, damage: Callable[[Bundle], None]) -> None:
    good = desk.sigstore.sign_digest(digest(desk.manifest))
    bad = copy.deepcopy(good)
    damage(bad)
    desk.verify(good)
    with pytest.raises(SignatureRefused):
        desk.verify(bad)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b'{"mediaType": 1}', b"[" * 100_000, b"\xff"])
def test_what_is_no_bundle_is_refused_in_words(desk: Desk, content: bytes) -> None:
    with pytest.raises(SignatureRefused, match="not a good signature"):
        verify_signature(content, desk.manifest, desk.trust)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"nothing"])
def test_a_trusted_root_that_is_none_is_named(desk: Desk, content: bytes | None) -> None:
    path = desk.folder / "other_root.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SignatureRefused, match=r"other_root\.json"):
        desk.verify(desk.sigstore.sign_digest(digest(desk.manifest)), trust=Trust(path, (IDENTITY,), ISSUER))
