"""How this house speaks TLS to others: certificate and host name are always verified."""

import ssl
from functools import lru_cache
from pathlib import Path

from core.env import SettingsError


def client_context() -> ssl.SSLContext:
    """Trusts what the system trusts; TLS 1.2 or newer, which Python leaves to how it was built and to the system."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@lru_cache(maxsize=4)
def engine_context(ca_file: Path | None) -> ssl.SSLContext:
    """For engines. Trusts what the system trusts and, where given, the certificates in `ca_file` (PEM) too.

    HTTP/1.1 only. Read once in a process. Raises SettingsError for a file that cannot be read or holds no certificate.
    """
    return _context("GATEHOUSE_ENGINE_CA_FILE", ca_file)


@lru_cache(maxsize=4)
def outbound_context(ca_file: Path | None) -> ssl.SSLContext:
    """The same for addresses that people typed in: key sets of issuers, webhooks."""
    return _context("GATEHOUSE_OUTBOUND_CA_FILE", ca_file)


@lru_cache(maxsize=4)
def web_context(ca_file: Path | None) -> ssl.SSLContext:
    """The same for the web process, as node agents speak to it."""
    return _context("GATEHOUSE_NODE_CA_FILE", ca_file)


def _context(setting: str, ca_file: Path | None) -> ssl.SSLContext:
    context = client_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except ssl.SSLError as error:
            raise SettingsError(f"{setting}={str(ca_file)!r} holds no PEM certificate") from error
        except OSError as error:
            raise SettingsError(f"{setting}={str(ca_file)!r} cannot be read: {error.strerror or error}") from error
    return context


def tls_failure(error: OSError) -> str | None:
    """What went wrong with TLS, for the middle of a sentence; None where something else did."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return None
