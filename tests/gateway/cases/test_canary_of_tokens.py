"""Tokens of issuers, and what they say of a person, stay nowhere, believed or not (G25)."""

from typing import Any, Final

import pytest

from bench.house import wait_until
from tenants.actor import SYSTEM
from tenants.models import UsageRecord
from tenants.services import create_token_issuer, delete_token_issuer
from tests.doubles.engine import answers
from tests.doubles.issuer import AUDIENCE, TokenMaker
from tests.gateway.cases.desk import CHAT, Answer, Case
from tests.gateway.cases.test_canary import CANARY as CANARY_OF_OTHERS
from tests.gateway.cases.test_canary import is_kept_nowhere

CANARY: Final = CANARY_OF_OTHERS
PERSON: Final = f"{CANARY}@example.test"


@pytest.mark.shows("G25")
def test_g25_no_token_nor_what_it_says_of_a_person_is_told_or_kept(case: Case) -> None:
    maker = TokenMaker(f"https://issuer.{case.door}-{case.streamed}.example".lower())
    issuer = create_token_issuer(
        actor=SYSTEM, name="Canary", issuer=maker.issuer, audiences=[AUDIENCE], pinned_jwks=maker.key_set(),
        default_scopes=["infer"],
    )  # fmt: skip
    about: dict[str, Any] = {
        "sub": PERSON,
        "email": PERSON,
        "name": CANARY,
        "jti": CANARY,
        "groups": [CANARY],
        "scope": None,
    }
    good = maker.token(tid="acme", **about)
    head, payload, signature = good.split(".")
    wrong = [
        maker.token(tid=CANARY, **about),
        maker.token(**about),
        maker.token(tid="acme", **about | {"aud": CANARY}),
        maker.token(tid="acme", **about | {"exp": 1}),
        f"{head}.{payload}.{signature[:-4]}AAAA",
        maker.token(tid="acme", headers={"kid": CANARY}, **about),
        maker.token(tid="acme", headers={"typ": CANARY, "jku": f"https://{CANARY}.example"}, **about),
        TokenMaker(f"https://{CANARY}.example").token(tid="acme", **about),
        f"{head}.{payload}.{CANARY}",
        maker.token(tid="acme", **about | {"scope": CANARY}),
    ]
    served, broken = case.serve(case.says("A")), case.serve(answers({"error": {"message": "no"}}, status=500))

    def ask(token: str, model: str = served.name) -> Answer:
        return case.ask(model, headers={"authorization": f"Bearer {token}"})

    wait_until(lambda: ask(good).status == 200, "the issuer at the door")
    told = [ask(good), ask(good, broken.name), ask(good, "hidden"), *map(ask, wrong)]
    assert {answer.status for answer in told} >= {200, 401, 404, 500}
    for answer in told:
        assert CANARY not in answer.body.decode() + repr(answer.headers), answer
    row = case.row(told[0])
    assert (row.key_id, UsageRecord.objects.filter(subject_id=row.subject_id).exists()) == (None, True)
    for token in (good, *wrong):
        assert token not in case.metrics()
        for process in ("relay", "web", "drain"):
            log = case.house.log(process).read_text()
            assert token.rpartition(".")[2] not in log
            assert payload not in log
    delete_token_issuer(issuer.pk, actor=SYSTEM)
    is_kept_nowhere(case)
    assert CHAT in {sent.path for sent in served.received}
    assert CANARY not in repr(served.received)
