"""The control plane's secrets are told once and kept nowhere (G25): keys, links, webhooks' and nodes' secrets, tokens.

Everything that makes a secret is asked, right and wrong, twice with an idempotency key; then all that is kept or told
is searched: tables (audit log and stored answers among them), both Valkeys, logs, metrics, and every later answer.
"""

import json
import logging
import os
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.db import connection
from django.test import Client
from prometheus_client import REGISTRY, generate_latest

from tenants.actor import SYSTEM
from tenants.models import PlatformRole
from tenants.services import create_access_token
from tests.factories import make_tenant, make_user

pytestmark = pytest.mark.django_db
CANARY = "canary77d1e0c4f2"


class Asker:
    """Asks the control API as a superuser, and keeps the secrets and the texts that it is told."""

    def __init__(self, token: str) -> None:
        self._client = Client(headers={"authorization": f"Token {token}"})
        self.secrets = {token}
        self.told: list[str] = []

    def post(self, path: str, body: Any, *, twice: bool = True) -> Any:
        said = json.dumps(body)
        key = {"idempotency-key": f"{path}{said}".replace(" ", "")[:200]}
        first = self._client.post(path, said, content_type="application/json", headers=key)
        if twice:
            again = self._client.post(path, said, content_type="application/json", headers=key)
            self.told.append(again.content.decode())
        found = first.json() if first.content else {}
        self.secrets |= {found[name] for name in ("secret", "token") if isinstance(found.get(name), str)}
        if first.status_code >= 400:
            self.told.append(first.content.decode())
        return found

    def get(self, path: str) -> None:
        answer = self._client.get(path, headers={"x-token": CANARY})
        content: Any = answer if answer.streaming else [answer.content]
        self.told.append(b"".join(content).decode())


def _kept() -> Iterator[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT t::text FROM "{table}" t')
            yield f"table {table}", "\n".join(row[0] for row in cursor.fetchall())
    for variable in ("VALKEY_STATE_URL", "VALKEY_SCRATCH_URL"):
        with redis.Redis.from_url(os.environ[variable]) as client:
            for key in client.scan_iter():
                yield f"{variable} {key!r}", repr(client.dump(key))


@pytest.mark.shows("G25")
def test_secrets_of_the_control_plane_are_told_once_and_kept_nowhere(
    valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    superuser = make_user(platform_role=PlatformRole.SUPERUSER)
    make_tenant("acme")
    asker = Asker(create_access_token(superuser, name="canary", actor=SYSTEM).secret)

    key = asker.post("/api/tenants/acme/keys/", {"name": "k"})
    rotated = asker.post(f"/api/tenants/acme/keys/{key['id']}/rotate/", {"overlap_seconds": 60})
    asker.post(f"/api/tenants/acme/keys/{rotated['id']}/compromised/", {})
    asker.post("/api/tenants/acme/invitations/", {"email": "new@example.test", "role": "viewer"})
    hook = asker.post("/api/tenants/acme/webhooks/", {"url": "https://hooks.example.test/x"})
    if "id" in hook:
        asker.post(f"/api/tenants/acme/webhooks/{hook['id']}/rotate/", {})
    node = asker.post("/api/nodes/", {"name": "n"}, twice=False)
    asker.post(f"/api/nodes/{node['node']['id']}/token/", {}, twice=False)
    output = StringIO()
    call_command("access_token", superuser.email, "--name", "by hand", stdout=output)
    asker.secrets.add(output.getvalue().split()[-1])
    assert len(asker.secrets) >= 7

    # Where somebody puts a secret by mistake, it is refused without a trace.
    for path in ("/api/tenants/", "/api/tenants/acme/keys/", "/api/issuers/", "/api/limits/", "/api/nodes/"):
        asker.post(path, {"secret": CANARY, "password": CANARY, "name": {CANARY: CANARY}}, twice=False)
        Client(headers={"authorization": f"Token {CANARY}", "cookie": f"s={CANARY}"}).get(path)
    asker.secrets.add(CANARY)
    for path in ("keys/", "webhooks/", "invitations/", "audit/", "audit.csv"):
        asker.get(f"/api/tenants/acme/{path}")
    for path in ("audit/", "audit.csv", "configuration/history/", "nodes/", "people/"):
        asker.get(f"/api/{path}")

    places = dict(_kept())
    places["log"] = caplog.text
    places["metrics"] = generate_latest(REGISTRY).decode()
    places |= {f"answer {number}": text for number, text in enumerate(asker.told)}
    found = [(place, secret[:8]) for place, text in places.items() for secret in asker.secrets if secret in text]
    assert found == []
    assert any("api_key.created" in text for text in places.values())  # it is searched where things are
