"""A small OpenID Connect provider over HTTP: discovery, authorize, token, keys and user information, signed RS256.

It logs in whoever `person` says, without asking. The code flow is checked as a real provider would: client, secret,
redirect address, PKCE and that a code is used once.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa


class OidcProvider:
    """What it says can be changed while it runs."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}/realm"
        self.client_id, self.client_secret = "gatehouse", "client-secret-value"
        self.person: dict[str, Any] = {"sub": "u-1", "email": "ada@example.com", "email_verified": True}
        self.id_token: dict[str, Any] = {}
        """Claims of the ID token that differ from what is true."""
        self.userinfo: dict[str, Any] = {}
        """The same of the user information."""
        self.algorithm = "RS256"
        self.signing_key: Any = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._shown_key = self.signing_key
        self.refuses = ""
        """An error with which the browser is sent back."""
        self.broken = False
        """Every address but the browser's answers 500."""
        self._codes: dict[str, dict[str, str]] = {}

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }

    def keys(self) -> dict[str, Any]:
        shown = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._shown_key.public_key()))
        return {"keys": [{**shown, "kid": "key-1", "use": "sig", "alg": "RS256"}]}

    def authorize(self, query: dict[str, str]) -> str:
        """Where the browser goes next."""
        if self.refuses:
            return f"{query['redirect_uri']}?{urlencode({'error': self.refuses, 'state': query['state']})}"
        assert query["client_id"] == self.client_id
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe()
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str]) -> dict[str, Any] | None:
        asked = self._codes.pop(form.get("code", ""), None)
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if (
            asked is None
            or form.get("client_secret") != self.client_secret
            or form.get("redirect_uri") != asked["redirect_uri"]
            or base64.urlsafe_b64encode(verifier).decode().rstrip("=") != asked["code_challenge"]
        ):
            return None
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": self.client_id, "iat": now, "exp": now + 300, **self.person}
        claims |= self.id_token
        signed = jwt.encode(claims, self.signing_key, algorithm=self.algorithm, headers={"kid": "key-1"})
        return {"access_token": "access", "token_type": "Bearer", "expires_in": 300, "id_token": signed}


@contextmanager
def running_provider() -> Iterator[OidcProvider]:
    """The provider on a free port, until the context ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    provider = OidcProvider(server.server_address[1])
    server.provider = provider  # type: ignore[attr-defined]  # for the handler
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        provider: OidcProvider = self.server.provider  # type: ignore[attr-defined]  # see above
        parts = urlsplit(self.path)
        name = parts.path.removeprefix("/realm")
        if name == "/authorize":
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            self.send_response(302)
            self.send_header("Location", provider.authorize(query))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif provider.broken:
            self._answer(500, {})
        elif name == "/.well-known/openid-configuration":
            self._answer(200, provider.discovery())
        elif name == "/keys":
            self._answer(200, provider.keys())
        elif name == "/userinfo" and self.headers["Authorization"] == "Bearer access":
            self._answer(200, {**provider.person, **provider.userinfo})
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        provider: OidcProvider = self.server.provider  # type: ignore[attr-defined]
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        answer = provider.token({key: values[0] for key, values in form.items()})
        self._answer(200 if answer else 400, answer or {"error": "invalid_grant"})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass
