"""Nothing that a caller sends in confidence stays anywhere: a canary goes in everywhere, then all is searched."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import httpx2 as httpx
import pytest
import redis
from django.db import connection

from tests.house import TestHouse

CANARY: Final = "canary7f3e9d51c"
CHAT: Final = "/v1/chat/completions"


def requests_with_canary(house: TestHouse) -> Iterator[httpx.Response]:
    """The canary as key, header, prompt, model name and broken body; served and refused."""
    messages = [{"role": "system", "content": CANARY}, {"role": "user", "content": f"Say {CANARY}"}]
    headers = {"cookie": f"session={CANARY}", "x-forwarded-for": CANARY, "user-agent": CANARY}
    bodies: list[dict[str, Any]] = [
        {"model": "tiny", "messages": messages, "max_tokens": 2, "user": CANARY},
        {"model": "tiny", "messages": messages, "max_tokens": 2, "stream": True, "metadata": {"a": CANARY}},
        {"model": "idle", "messages": messages},
        {"model": "hidden", "messages": messages},
        {"model": CANARY, "messages": messages},
        {"model": "tiny", "messages": CANARY},
        {"model": "tiny", "messages": messages, "max_tokens": CANARY},
        {"model": "tiny", "messages": messages, "tools": CANARY},  # the engine refuses this one
    ]
    with house.client(timeout=30) as client:
        for body in bodies:
            yield client.post(CHAT, json=body, headers=headers)
        yield client.post(CHAT, content=f'{{"model": "{CANARY}", {CANARY}'.encode(), headers=headers)
        yield client.post(CHAT, params={"key": CANARY}, json=bodies[0], headers=headers)
        yield client.post(CHAT, json=bodies[0], headers={**headers, "x-api-key": CANARY})
        yield client.get(f"/v1/{CANARY}", headers=headers)
        yield client.get(f"/v1/models/{CANARY}", headers=headers)
    for secret in (f"sk-gh-{CANARY}", f"sk-gh-{CANARY} {CANARY}", CANARY * 400):
        with house.client(secret) as stranger:
            yield stranger.get("/v1/models", headers=headers)
            yield stranger.post(CHAT, json=bodies[0], headers=headers)


def stored_texts(house: TestHouse) -> Iterator[tuple[str, bytes]]:
    """Everything that this installation keeps: tables, Valkey, files."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT t::text FROM "{table}" t')
            yield f"table {table}", "\n".join(row[0] for row in cursor.fetchall()).encode()
    for variable in ("VALKEY_STATE_URL", "VALKEY_SCRATCH_URL"):
        with redis.Redis.from_url(os.environ[variable]) as client:
            for key in client.scan_iter():
                yield f"{variable} {key!r}", key + repr(_value(client, key)).encode()
    for path in house.folder.rglob("*"):
        if path.is_file() and not path.name.startswith("engine-"):  # what an engine logs is not ours
            yield str(path.relative_to(house.folder)), path.read_bytes()


def _value(client: redis.Redis, key: bytes) -> object:
    readers: list[Any] = [
        client.get,
        client.hgetall,
        lambda key: client.zrange(key, 0, -1, withscores=True),
        lambda key: client.lrange(key, 0, -1),
        client.smembers,
        client.xrange,
    ]
    for read in readers:
        with contextlib.suppress(redis.ResponseError):
            return read(key)
    raise AssertionError(f"{key!r} is of a type that this test does not read")


@pytest.mark.shows("G25")
def test_no_secret_of_a_caller_is_kept_or_told(house: TestHouse) -> None:
    house.stop("relay")
    house.environ["GATEHOUSE_LOG_LEVEL"] = "DEBUG"  # also not in the most talkative of logs
    house.start("relay")
    answers = list(requests_with_canary(house))
    assert {answer.status_code for answer in answers} >= {200, 400, 401, 404, 503}
    house.ledger_row(answers[0].headers["x-request-id"])
    house.ledger_row(answers[1].headers["x-request-id"])
    for answer in answers:
        if "engine_error" in answer.text:
            continue  # the engine's own sentence on what is wrong with a body goes to the one who sent it
        told = answer.text + repr(answer.headers)
        assert CANARY not in told, f"{answer.request.method} {answer.request.url.path} {answer.status_code}: {told}"
    with house.client("") as client:
        assert CANARY not in client.get("/metrics").text
    for where, text in stored_texts(house):
        assert CANARY.encode() not in text, where
        assert house.key.secret.encode() not in text, where
