"""Asking both doors the same, and what their answers must have in common."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx2 as httpx
import pytest

from bench.house import wait_until
from tenants.actor import SYSTEM
from tenants.services import create_api_key, revoke_api_key
from tests.house import TestHouse

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MESSAGES: Final = [{"role": "user", "content": "Hello"}]
GREEDY: Final = {"model": "tiny", "max_tokens": 4, "temperature": 0, "seed": 1, "cache_prompt": False}

VALID: Final = "*valid*"
"""Stands for the valid key in a header's place."""

AGREED_HEADERS: Final = (
    "content-type",
    "content-length",
    "cache-control",
    "retry-after",
    "www-authenticate",
    "allow",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
)


def _whole_prompt(found: re.Match[bytes]) -> bytes:
    """How much of a prompt an engine still has from before depends on the slot that it answers with."""
    return b'"input_tokens":%d' % (int(found[1]) + int(found[2]))


_MASKS: Final[tuple[tuple[re.Pattern[bytes], Any], ...]] = (
    (re.compile(rb'"(id|item_id|request_id|call_id)":"[^"]*"'), rb'"\1":"*"'),
    (re.compile(rb'"(created|created_at|completed_at)":[\d.]+'), rb'"\1":0'),
    (re.compile(rb'"timings":\{[^}]*\}'), b'"timings":{}'),
    (
        re.compile(rb'"input_tokens":(\d+),"cache_creation_input_tokens":0,"cache_read_input_tokens":(\d+)'),
        _whole_prompt,
    ),
    (re.compile(rb'("input_tokens_details":\{"cached_tokens":)\d+'), rb"\g<1>0"),  # the same, in responses
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, sent through both doors. `key`: valid, limited, revoked, or the credential itself."""

    name: str
    path: str = CHAT
    method: str = "POST"
    body: Mapping[str, Any] | bytes | None = None
    key: str = "valid"
    status: int = 200
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = field(default_factory=dict)


def chat(**more: Any) -> dict[str, Any]:
    return {**GREEDY, "messages": MESSAGES, **more}


@dataclass(frozen=True, slots=True)
class Doors:
    """A house with both doors open, and secrets of keys by their names."""

    house: TestHouse
    secrets: Mapping[str, str]

    def send(self, door: str, ask: Ask) -> httpx.Response:
        with self.house.client(self.secrets.get(ask.key, ask.key), door=door) as client:
            if isinstance(ask.body, bytes) or ask.body is None:
                request = client.build_request(ask.method, ask.path, content=ask.body)
            else:
                request = client.build_request(ask.method, ask.path, json=ask.body)
            given = ask.headers.items() if isinstance(ask.headers, Mapping) else ask.headers
            more = [(name, self.secrets["valid"] if value == VALID else value) for name, value in given]
            request.headers = httpx.Headers([*request.headers.multi_items(), *more])
            return client.send(request)

    def wait_for_models(self, status: int) -> None:
        """Until both doors answer /v1/models so."""
        for door in ("relay", "web"):
            wait_until(partial(self._answers, door, status), f"{status} at the {door}")

    def wait_for(self, ask: Ask) -> None:
        """Until both doors answer it as it says: what was written lately, they know."""
        for door in ("relay", "web"):
            wait_until(partial(self._is_answered, door, ask), f"{ask.name} at the {door}")

    def _answers(self, door: str, status: int) -> bool:
        return self._is_answered(door, Ask("models", "/v1/models", "GET", status=status))

    def _is_answered(self, door: str, ask: Ask) -> bool:
        return self.send(door, ask).status_code == ask.status


@pytest.fixture(scope="module")
def house_more() -> dict[str, str]:
    """For a module that takes `doors`: bodies that are too large for them are not large."""
    return {"GATEHOUSE_BODY_CAP_BYTES": str(1024 * 1024)}


@pytest.fixture(scope="module")
def doors(house: TestHouse) -> Doors:
    assert "GATEHOUSE_BODY_CAP_BYTES" in house.environ  # `house_more` is the one above, or has it too
    house.start("web")
    revoked = house.new_key("revoked")
    revoke_api_key(revoked.id, actor=SYSTEM)
    unscoped = create_api_key(house.tenant, name="unscoped", scopes=["embed"], actor=SYSTEM)
    chatting = create_api_key(house.tenant, name="no embeddings", scopes=["infer"], actor=SYSTEM)
    return Doors(
        house,
        {
            "valid": house.key.secret,
            "revoked": revoked.secret,
            "unscoped": unscoped.secret,
            "infer only": chatting.secret,
        },
    )


def comparable(response: httpx.Response) -> tuple[int, bytes, dict[str, str]]:
    """What both doors must agree on."""
    body = response.content
    for pattern, mask in _MASKS:
        body = pattern.sub(mask, body)
    headers = {name: response.headers[name] for name in AGREED_HEADERS if name in response.headers}
    streamed = headers.get("content-type", "").startswith("text/event-stream")
    if body != response.content or response.status_code == 204 or streamed:
        # Masked parts differ in length, Django counts also what is not there, and a stream may come in one piece.
        headers.pop("content-length", None)
    return response.status_code, body, headers


def encoded(body: Mapping[str, Any]) -> bytes:
    """A body as no JSON library writes it, so that whoever decodes and encodes it is found out."""
    return json.dumps(body, indent=3, ensure_ascii=True).encode().replace(b": ", b" :\t")
