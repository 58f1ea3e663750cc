"""Where an etcd is and how one is let in, read from settings."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from core.env import SettingsError

_PORT: Final = 2379


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """`targets` are members of one cluster, host:port each; `prefix` goes before every key, empty or /like/this."""

    targets: tuple[str, ...]
    secure: bool = False
    prefix: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


def parse_etcd_url(
    url: str, *, ca_file: Path | None = None, certificate_file: Path | None = None, key_file: Path | None = None
) -> EtcdAddress:
    """An address from `http(s)://[user:password@]host[:port][,more members][/prefix]`.

    Raises SettingsError with what is wrong; the message holds no password.
    """
    head, found, rest = url.partition("://")
    if not found or head not in ("http", "https"):
        raise SettingsError("ETCD_URL must begin with http:// or https://")
    members, _, path = rest.partition("/")
    login, _, hosts = members.rpartition("@")
    username, has_password, password = login.partition(":")
    if bool(username) != bool(has_password and password):
        raise SettingsError("ETCD_URL names a user without a password, or a password without a user")
    prefix = "/" + path.strip("/") if path.strip("/") else ""
    if bool(certificate_file) != bool(key_file):
        raise SettingsError("ETCD_CERT_FILE and ETCD_KEY_FILE are set together")
    secure = head == "https"
    if not secure and (ca_file or certificate_file):
        raise SettingsError("ETCD_URL must begin with https:// where a CA file or a certificate is given")
    return EtcdAddress(
        targets=tuple(_target(host) for host in hosts.split(",")),
        secure=secure,
        prefix=prefix,
        username=unquote(username) or None,
        password=unquote(password) or None,
        ca=_content(ca_file, "ETCD_CA_FILE"),
        certificate=_content(certificate_file, "ETCD_CERT_FILE"),
        key=_content(key_file, "ETCD_KEY_FILE"),
    )


def _target(host: str) -> str:
    try:
        parts = urlsplit(f"//{host.strip()}")
        port = parts.port or _PORT
    except ValueError as error:
        raise SettingsError(f"ETCD_URL names a member that cannot be read: {error}") from None
    if not parts.hostname:
        raise SettingsError("ETCD_URL names no host")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{name}:{port}"


def _content(path: Path | None, variable: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{variable}={path} cannot be read: {error.strerror}") from None
