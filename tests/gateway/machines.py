"""A house with three relays and the web door, and an issuer of tokens whose keys they fetch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx2 as httpx
import pytest

from bench.house import House
from tenants.actor import SYSTEM
from tenants.models import TokenIssuer
from tenants.services import (
    create_token_issuer,
)
from tests.doubles.issuer import AUDIENCE, TokenMaker
from tests.doubles.raw_server import RawServer, answering
from tests.house import TestHouse
from tests.ports import free_port
from tests.waiting import wait_until

BOUND_SECONDS: Final = 1.0
_CHAT: Final = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


@dataclass
class Machines:
    """A house with three relays and the web door, an issuer of tokens, and where its keys are fetched."""

    house: TestHouse
    maker: TokenMaker
    issuer: TokenIssuer
    address: RawServer
    relays: list[str]

    @property
    def doors(self) -> list[str]:
        return [self.relays[0], self.house.web_url]

    def issue(self) -> None:
        """The issuer anew, after it was deleted."""
        self.issuer = issuer_of(self.maker, self.address)

    def publish(self) -> None:
        self.address.script = answering(self.maker.key_set().encode())


def issuer_of(maker: TokenMaker, address: RawServer) -> TokenIssuer:
    return create_token_issuer(
        actor=SYSTEM,
        name="Machines",
        issuer=maker.issuer,
        audiences=[AUDIENCE],
        jwks_url=f"http://127.0.0.1:{address.port}/keys",
        allow_private=True,
        role_scopes={"ml-engineer": ["infer", "embed"]},
    )


@pytest.fixture(scope="module")
def machines(house: TestHouse) -> Iterator[Machines]:
    maker = TokenMaker("https://issuer.machines.example")
    address = RawServer(answering(maker.key_set().encode()))
    others = [
        House(house.folder / f"relay-{number}", house.environ, ports=(free_port(), free_port())) for number in (2, 3)
    ]
    for other in others:
        other.environ |= {
            "GATEHOUSE_VAR_DIR": str(other.folder / "var"), "GATEHOUSE_RELAY_PORT": str(other.relay_port),
        }  # fmt: skip
    issuer = issuer_of(maker, address)
    try:
        for other in others:
            other.start("relay")
        house.start("web")
        yield Machines(house, maker, issuer, address, [house.relay_url, *(other.relay_url for other in others)])
    finally:
        for other in others:
            other.stop_all()
        address.close()


def ask(door: str, credential: str, body: dict[str, Any] = _CHAT) -> httpx.Response:
    return httpx.post(
        f"{door}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {credential}"}, timeout=30
    )


def told(door: str, credential: str, status: int) -> httpx.Response:
    """The first answer with that status, waited for."""
    answers: list[httpx.Response] = []

    def is_so() -> bool:
        answers.append(ask(door, credential))
        return answers[-1].status_code == status

    try:
        wait_until(is_so, f"{status} from {door}", deadline_seconds=60)
    except AssertionError as error:
        raise AssertionError(answers[-1].text) from error
    return answers[-1]
