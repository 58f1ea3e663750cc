"""Questions that `up` and `status` ask over HTTP and SQL, each with a deadline."""

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

import psycopg

_DEADLINE_SECONDS: Final = 2.0
_CHAT_DEADLINE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of an HTTP answer; status 0 when there was none, with the reason as body."""

    status: int
    body: bytes

    @property
    def sentence(self) -> str:
        """What went wrong, for a person."""
        if self.status == 0:
            return self.body.decode(errors="replace")
        try:
            return f"{self.status}: {json.loads(self.body)['error']['message']}"
        except (ValueError, KeyError, TypeError):
            return f"status {self.status}"


def get(url: str, *, deadline_seconds: float = _DEADLINE_SECONDS) -> Answer:
    """GET past any proxy: these are addresses of this machine."""
    return _ask(urllib.request.Request(url), deadline_seconds)  # noqa: S310  # our own http address


def chat(relay_url: str, *, key: str, model: str) -> Answer:
    """One small chat completion."""
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    url = f"{relay_url}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310  # our own http address
    return _ask(request, _CHAT_DEADLINE_SECONDS)


def _ask(request: urllib.request.Request, deadline_seconds: float) -> Answer:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=deadline_seconds) as answer:
            return Answer(answer.status, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read())
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, str(error).encode())


@dataclass(frozen=True, slots=True)
class InstanceSeen:
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """What the database says about this machine's node and the instances."""

    node_state: str
    node_facts: dict[str, Any]
    gpus: int
    instances: tuple[InstanceSeen, ...]


def look_at_pool(database_url: str, *, node_name: str, model: str) -> PoolSeen:
    """Read the node, its GPUs and the instances of a model, newest first.

    Raises psycopg.Error when the database does not answer.
    """
    with psycopg.connect(database_url, connect_timeout=2) as connection:
        node = connection.execute("SELECT id, state, facts FROM gpupool_node WHERE name = %s", [node_name]).fetchone()
        gpus = connection.execute(
            "SELECT count(*) FROM gpupool_device WHERE node_id = %s AND kind = 'gpu' AND present",
            [node[0] if node else None],
        ).fetchone()
        rows = connection.execute(
            "SELECT i.state, i.reason FROM gpupool_instance i JOIN gpupool_modelversion v ON v.id = i.version_id "
            "JOIN gpupool_model m ON m.id = v.model_id "
            "WHERE m.name = %s AND i.desire = 'running' AND i.state <> 'stopped' ORDER BY i.id DESC",
            [model],
        ).fetchall()
    return PoolSeen(
        node_state=node[1] if node else "missing",
        node_facts=dict(node[2] or {}) if node else {},
        gpus=int(gpus[0]) if gpus else 0,
        instances=tuple(InstanceSeen(state, reason) for state, reason in rows),
    )


@dataclass(frozen=True, slots=True)
class InstanceLine:
    model: str
    engine: str
    state: str
    reason: str


def list_instances(database_url: str) -> list[InstanceLine]:
    """Every instance that is not stopped, oldest first. Raises psycopg.Error when the database does not answer."""
    with psycopg.connect(database_url, connect_timeout=2) as connection:
        rows = connection.execute(
            "SELECT m.name, i.engine, i.state, i.reason FROM gpupool_instance i "
            "JOIN gpupool_modelversion v ON v.id = i.version_id JOIN gpupool_model m ON m.id = v.model_id "
            "WHERE i.state <> 'stopped' ORDER BY i.id"
        ).fetchall()
    return [InstanceLine(*row) for row in rows]
