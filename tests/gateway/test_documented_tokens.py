"""The examples of the documents on tokens and keys, run as they stand against a house."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tenants.actor import SYSTEM
from tenants.models import ApiKey, TokenIssuer
from tenants.services import create_api_key, create_user, delete_token_issuer
from tenants.services.access_tokens import create_access_token
from tests.house import TestHouse

DOCS: Final = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def environ(house: TestHouse) -> dict[str, str]:
    """What the examples have for variables."""
    house.start("web")
    operator = create_user(
        email="operator@documents.example",
        password="a long enough one",
        display_name="Operator",
        platform_role="superuser",
        actor=SYSTEM,
    )
    return {
        **os.environ,
        "WEB": house.web_url,
        "RELAY": house.relay_url,
        "ACCESS": create_access_token(operator, name="documents", actor=SYSTEM).secret,
        "TENANT": house.tenant.slug,
        "MODEL": "tiny",
    }


def example(document: str, heading: str) -> str:
    """The commands under a heading."""
    text = (DOCS / document).read_text()
    found = re.search(rf"^#+ {heading}\n.*?^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found.group(1)


def run(commands: str, environ: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", commands], env=environ, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_issuer_is_registered_and_its_token_opens_the_door(environ: dict[str, str], tmp_path: Path) -> None:
    try:
        told = run(example("operators.md", "Token issuers"), environ, tmp_path)
        issuer, end = json.JSONDecoder().raw_decode(told)
        assert issuer["tenant"] == environ["TENANT"]
        assert json.loads(told[end:])["choices"][0]["message"]["content"]
    finally:
        for row in TokenIssuer.objects.filter(issuer="https://ci.example.org"):
            delete_token_issuer(row.pk, actor=SYSTEM)


def test_a_key_is_rotated(environ: dict[str, str], house: TestHouse, tmp_path: Path) -> None:
    key = create_api_key(house.tenant, name="documents", actor=SYSTEM).key
    told = json.loads(run(example("tenants.md", "Rotating keys"), {**environ, "KEY": str(key.pk)}, tmp_path))
    key.refresh_from_db()
    assert told["secret"].startswith("sk-gh-")
    assert str(key.replaced_by_id) == told["id"]
    assert ApiKey.objects.get(pk=told["id"]).lineage == key.pk
