"""What the tests of the cases share: a house with both doors open, engines that do what a test says, and answers.

The house has no engine of its own: each test attaches doubles under a model's name that no other test uses, so that
no breaker and no counter of one test is another's. Deadlines are the usual ones, which no test meets by chance; a test
that waits for one is marked with `keeping` those in which that one alone is short.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import httpx2 as httpx
import pytest
import redis
from django.db import transaction

from bench.house import wait_until
from bench.rows import Key, make_key, make_tenant, set_engine_health
from gateway.relay.deadlines import Deadlines
from gateway.relay.limiting.layout import GENERATION, area
from gpupool.models import Instance
from gpupool.services.attach import attach_engine
from tenants.actor import SYSTEM
from tenants.models import UsageRecord
from tests.doubles.engine import EngineDouble, Received, Script, Wire, answers, chat_stream, completion, streams
from tests.house import TestHouse

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"
TALK: Final = [{"role": "user", "content": "Hello"}]

USUAL: Final = Deadlines()
TALKATIVE: Final = Deadlines(keep_alive_seconds=0.3)
"""Clients are soon told that we live."""

ATTEMPTS: Final = 3
BODY_CAP_BYTES: Final = 1024 * 1024
SERVED: Final = "deployment-of-ours"
"""What the engines call every model; no client may see it."""

ENGINE_KEY_VARIABLE: Final = "GATEHOUSE_ENGINE_KEY_CASES"
ENGINE_KEY: Final = "the-key-that-an-engine-asks-for"

_numbers = count(1)


def keeping(deadlines: Deadlines) -> pytest.MarkDecorator:
    """For a test, or all of a module: the doors keep these deadlines."""
    return pytest.mark.parametrize("deadlines", [deadlines], ids=["own deadlines"])


class CasesHouse(TestHouse):
    """Drain, relay and web; the tenant `acme` may use every model but `hidden`."""

    __test__ = False

    clients: dict[str, httpx.Client]
    exhausted: Key
    """Its limit never has room again."""
    deadlines = USUAL

    def settle_in(self) -> None:
        self.environ |= {
            "GATEHOUSE_ATTEMPTS": str(ATTEMPTS),
            "GATEHOUSE_RETRY_SHARE": "1",  # the process's budget of retries is shown elsewhere
            "GATEHOUSE_BODY_CAP_BYTES": str(BODY_CAP_BYTES),
            "GATEHOUSE_SNAPSHOT_POLL_SECONDS": "0.05",
            ENGINE_KEY_VARIABLE: ENGINE_KEY,
            "GATEHOUSE_LOG_LEVEL": "DEBUG",  # what must not be logged must not be in the most talkative of logs
        }
        self.tenant = make_tenant("acme", models=("case-*",))
        self.key = make_key(self.tenant, "test")
        self.exhausted = make_key(self.tenant, "exhausted", rpm_limit=1)
        for process in ("drain", "relay", "web"):
            self.start(process)
        wait_until(self.counted, "counters of limits")
        with redis.Redis.from_url(self.environ["VALKEY_STATE_URL"]) as valkey:
            now = int(valkey.time()[0])
            valkey.hset(self.counter(self.exhausted), mapping={"used": 1_000_000, "head": now, "last": now})
        # One each for all tests: to make one (its TLS context) costs more than all else that a test does.
        self.clients = {
            process: httpx.Client(base_url=url, timeout=30.0)
            for process, url in (("relay", self.relay_url), ("web", self.web_url))
        }

    def keep(self, deadlines: Deadlines) -> None:
        """Both doors keep these: started anew where they kept others."""
        if deadlines == self.deadlines:
            return
        self.environ |= {
            "GATEHOUSE_FIRST_TOKEN_DEADLINE_SECONDS": str(deadlines.first_token_seconds),
            "GATEHOUSE_INTER_TOKEN_DEADLINE_SECONDS": str(deadlines.inter_token_seconds),
            "GATEHOUSE_TOTAL_DEADLINE_SECONDS": str(deadlines.total_seconds),
            "GATEHOUSE_SSE_KEEP_ALIVE_SECONDS": str(deadlines.keep_alive_seconds),
        }
        for process in ("relay", "web"):
            self.stop(process)
            self.start(process)
        self.deadlines = deadlines

    def counter(self, key: Key) -> str:
        """Valkey's name of the key's requests a minute."""
        return f"{area(self.environ['GATEHOUSE_VALKEY_PREFIX'])}w:{key.id.hex}"

    def counted(self) -> bool:
        """Whether there are counters for limits that processes may use."""
        with redis.Redis.from_url(self.environ["VALKEY_STATE_URL"]) as valkey:
            return bool(valkey.hget(area(self.environ["GATEHOUSE_VALKEY_PREFIX"]) + GENERATION, "state") == b"ready")


class Engines:
    """Engine doubles on a loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._doubles: list[EngineDouble] = []
        self._thread.start()

    def start(self, *scripts: Script) -> EngineDouble:
        """One more engine, which listens."""
        double = EngineDouble(*scripts)
        self._run(double.__aenter__())
        self._doubles.append(double)
        return double

    def stop_all(self) -> None:
        while self._doubles:
            self._run(self._doubles.pop().stop())

    def close(self) -> None:
        self.stop_all()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client was told, all of it."""

    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def request_id(self) -> str:
        return str(self.headers["x-request-id"])

    @property
    def streamed(self) -> bool:
        return bool(self.headers["content-type"].startswith("text/event-stream"))

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The events' data, as JSON; [DONE] is left out."""
        data = [line.removeprefix("data:") for line in self.body.decode().splitlines() if line.startswith("data:")]
        return [json.loads(one) for one in data if one.strip() != "[DONE]"]

    @property
    def text(self) -> str:
        """What the model said first of all, streamed or not."""
        if not self.streamed:
            return str(self.json["choices"][0]["message"]["content"])
        choices = [choice for event in self.events for choice in event.get("choices", ())]
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    @property
    def error(self) -> dict[str, Any]:
        """The error that it is, or that a stream ends with."""
        error: dict[str, Any] = (self.events[-1] if self.streamed else self.json)["error"]
        return error


@dataclass(frozen=True, slots=True)
class Served:
    """A model and the engines that it is on."""

    name: str
    doubles: list[EngineDouble]
    instances: list[Instance]

    @property
    def received(self) -> list[Received]:
        """What all its engines were asked."""
        return [request for double in self.doubles for request in double.received]

    @property
    def open(self) -> int:
        """Connections to its engines that are open."""
        return sum(double.open for double in self.doubles)


@dataclass(frozen=True, slots=True)
class Case:
    """One door (relay or drf), asked for streams or whole answers."""

    house: CasesHouse
    engines: Engines
    door: str
    streamed: bool

    @property
    def web_or_relay(self) -> str:
        """The door's process."""
        return "web" if self.door == "drf" else "relay"

    # Engines

    def serve(
        self, *scripts: Script, endpoints: int = 1, name: str = "case", credential: str = "", exactly: str = ""
    ) -> Served:
        """A new model on new engines that both doors know. The scripts are taken in turn, whichever is asked.

        `credential`: the variable that holds the engines' own key; `exactly`: the model's name, where it matters.
        """
        play = _in_turn(scripts)
        doubles = [self.engines.start(play) for _ in range(endpoints)]
        model = exactly or f"{name}-{next(_numbers)}"
        with transaction.atomic():  # or a door might know one of them already, and not the others
            instances = [
                attach_engine(
                    f"http://127.0.0.1:{double.port}",
                    engine="vllm",
                    model_name=model,
                    served_name=SERVED,
                    credential_variable=credential,
                    actor=SYSTEM,
                ).instance
                for double in doubles
            ]
            for instance in instances:
                set_engine_health(instance, healthy=True)
        if name == "case":
            for door in ("relay", "web"):
                wait_until(lambda door=door: self._routes(door, model), f"{model} at the {door}")  # type: ignore[misc]  # mypy infers no type of a lambda's defaults
        return Served(model, doubles, instances)

    def _routes(self, process: str, model: str) -> bool:
        """Whether that process knows an engine of the model: only then does it ask whether a limit has room."""
        headers = self.headers(self.house.exhausted)
        body = {"model": model, "messages": TALK}
        return self.house.clients[process].post(CHAT, json=body, headers=headers).status_code == 429

    def says(self, *texts: str, usage: tuple[int, int] | None = (7, 3)) -> Script:
        """A sound answer, streamed or not, as this case asks for it."""
        if self.streamed:
            return streams(*chat_stream(*texts, usage=usage, model=SERVED))
        return answers(completion("".join(texts), usage=usage, model=SERVED))

    # Clients

    @property
    def client(self) -> httpx.Client:
        """Of this door; it sends no key by itself."""
        return self.house.clients[self.web_or_relay]

    def headers(self, key: Key | None = None) -> dict[str, str]:
        """A key (acme's where none is given) as a header."""
        return {"authorization": f"Bearer {(key or self.house.key).secret}", "content-type": "application/json"}

    def body(self, model: str, path: str = CHAT, **members: Any) -> dict[str, Any]:
        """A request of that endpoint, streamed or not, as the case is."""
        asked: dict[str, Any] = {"messages": TALK}
        if path == COMPLETIONS:
            asked = {"prompt": "Hello"}
        elif path == RESPONSES:
            asked = {"input": "Hello", "store": False}
        elif path == MESSAGES:
            asked["max_tokens"] = 9
        return {"model": model, **asked, "stream": self.streamed, **members}

    def ask(
        self,
        model: str,
        path: str = CHAT,
        *,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        **members: Any,
    ) -> Answer:
        """Ask, and read the answer to its end. `content` in the body's place where given."""
        sent = json.dumps(self.body(model, path, **members)).encode() if content is None else content
        response = self.client.post(path, content=sent, headers=self.headers(key) | dict(headers or {}))
        return Answer(response.status_code, response.headers, response.content)

    # What is written down

    def row(self, answer: Answer) -> UsageRecord:
        """The ledger's row of an answer."""
        return self.house.ledger_row(answer.request_id)

    def row_of(self, model: str) -> UsageRecord:
        """The only row of a model."""
        rows = UsageRecord.objects.filter(model=model)
        wait_until(rows.exists, f"a ledger row for {model}")
        return rows.get()

    def metrics(self) -> str:
        return self.client.get("/metrics").text

    def active(self, served: Served) -> float:
        """Requests in flight on a model's engines, as the door's metrics have it."""
        samples = [f'gatehouse_endpoint_active_requests{{instance="{one.pk}"}}' for one in served.instances]
        return sum(float(line.split()[-1]) for line in self.metrics().splitlines() if line.startswith(tuple(samples)))


def _in_turn(scripts: Iterable[Script]) -> Script:
    """A script that does the given ones one after the other, and the last one for ever."""
    left = list(scripts)

    async def script(request: Received, wire: Wire) -> None:
        play = left.pop(0) if len(left) > 1 else left[0]
        await play(request, wire)

    return script


def at_once(*asks: Callable[[], Answer]) -> list[Answer]:
    """The answers of many clients that ask at the same moment."""
    barrier = threading.Barrier(len(asks))
    told: list[Answer | None] = [None] * len(asks)

    def run(number: int) -> None:
        barrier.wait(30)
        told[number] = asks[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [answer for answer in told if answer is not None]
