"""What engines behind https are trusted by."""

import ssl
from pathlib import Path

import pytest

from core.env import SettingsError
from core.tls import engine_context, outbound_context
from tests.doubles.authority import Authority


def test_certificate_and_name_are_always_verified(tmp_path: Path) -> None:
    for context in (engine_context(None), engine_context(Authority(tmp_path).ca_file)):
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_file_is_trusted_beside_the_systems_own(tmp_path: Path) -> None:
    system = engine_context(None).cert_store_stats()["x509_ca"]
    assert engine_context(Authority(tmp_path).ca_file).cert_store_stats()["x509_ca"] == system + 1


@pytest.mark.parametrize("content", [None, "", "not a certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_bad_file_is_named_in_a_sentence(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(
        SettingsError, match=r"GATEHOUSE_ENGINE_CA_FILE='.*ca.pem' (cannot be read: No such|holds no PEM)"
    ):
        engine_context(file)
    with pytest.raises(SettingsError, match="cannot be read"):
        engine_context(tmp_path)
    with pytest.raises(SettingsError, match="GATEHOUSE_OUTBOUND_CA_FILE"):
        outbound_context(file)
