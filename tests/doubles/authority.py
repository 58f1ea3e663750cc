"""A certificate authority of a test's own, by the openssl command."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


class Authority:
    """Its files lie in `folder`; `ca_file` is what those trust who trust it."""

    def __init__(self, folder: Path, *, name: str = "Test authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl on this machine to make certificates with")
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self.ca_file = folder / "ca.pem"
        self._key_file = folder / "ca.key"
        self._openssl(
            "req", "-x509", *self._new_key(self._key_file), "-out", self.ca_file, "-days", "2", "-subj", f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip

    def server(self, *names: str) -> ssl.SSLContext:
        """What a server shows that is called by these subject names, for example `IP:127.0.0.1` or `DNS:engine`."""
        key, request, chain = (self._folder / f"server.{end}" for end in ("key", "csr", "pem"))
        extensions = self._folder / "server.ext"
        extensions.write_text(f"subjectAltName={','.join(names)}\n")
        self._openssl("req", *self._new_key(key), "-out", request, "-subj", "/CN=engine")
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.ca_file, "-CAkey", self._key_file, "-CAcreateserial",
            "-out", chain, "-days", "2", "-extfile", extensions,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context

    def _new_key(self, file: Path) -> list[str | Path]:
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", file]

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
