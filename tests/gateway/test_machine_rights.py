"""What tokens may and what holds them back, at three relays and the web door: leeway, buckets, rights, rollback."""

import time
from collections.abc import Callable
from typing import Any, Final

import httpx2 as httpx
import pytest

from bench.rows import make_tenant
from tenants.actor import SYSTEM
from tenants.models import Grant, PlatformRole
from tenants.services import (
    change_token_issuer,
    create_access_token,
    grant_model,
    remove_grant,
)
from tenants.services.limits import create_limit, delete_limit
from tests.factories import make_user
from tests.gateway.machines import Machines, ask, told
from tests.gateway.machines import machines as machines
from tests.waiting import wait_until

_CHAT: Final = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


@pytest.mark.shows("G28")
def test_a_token_outlives_its_time_by_the_leeway_and_no_more(machines: Machines) -> None:
    """Thirty seconds, which the issuer's row says; `told` waits for the door to know another."""
    assert machines.issuer.leeway_seconds == 30
    for door in machines.doors:
        now = time.time()
        assert ask(door, machines.maker.token(tid="acme", exp=now - 20)).status_code == 200
        assert ask(door, machines.maker.token(tid="acme", nbf=now + 20)).status_code == 200
        assert ask(door, machines.maker.token(tid="acme", exp=now - 31)).status_code == 401
    change_token_issuer(machines.issuer.pk, actor=SYSTEM, leeway_seconds=0)
    for door in machines.doors:
        told(door, machines.maker.token(tid="acme", exp=time.time() - 2), 401)
    change_token_issuer(machines.issuer.pk, actor=SYSTEM, leeway_seconds=30)


@pytest.mark.shows("R1", "R83")
def test_tokens_are_limited_at_both_doors_together_and_documented(machines: Machines) -> None:
    """One bucket for what comes with tokens over every protocol, as the schema of the door says."""
    limit = create_limit(
        tenant=machines.house.tenant, metric="requests", window="bucket", amount=7, refill_per_second=0.001,
        actor=SYSTEM,
    )  # fmt: skip
    token = machines.maker.token(tid="acme")
    headers = {"authorization": f"Bearer {token}"}
    asks: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": _CHAT,
        "/v1/messages": _CHAT,
        "/v1/completions": {"model": "tiny", "prompt": "Hi", "max_tokens": 1},
    }
    try:
        for door in [*machines.relays, machines.house.web_url]:  # until each has it, at another model's cost
            wait_until(
                lambda door=door: (
                    "x-ratelimit-limit-requests"  # type: ignore[misc]  # of a lambda's defaults
                    in httpx.post(f"{door}/v1/chat/completions", json=_CHAT, headers=headers, timeout=30).headers
                ),
                "the limit",
            )
        seen = [
            httpx.post(f"{door}{path}", json=body, headers=headers, timeout=30)
            for path, body in asks.items()
            for door in (machines.house.web_url, *machines.relays)
        ]
        assert sum(answer.status_code == 200 for answer in seen) == 3  # seven, less the four that were sure of it
        assert {answer.status_code for answer in seen[3:]} == {429}
        assert {answer.headers["x-ratelimit-limit-requests"] for answer in seen} == {"7"}
    finally:
        delete_limit(limit.pk, actor=SYSTEM)
    for door in machines.doors:
        told(door, token, 200)
    schema = httpx.get(f"{machines.house.web_url}/api/schema?format=json", timeout=30).json()
    assert schema["openapi"].startswith("3.1.")
    schemes = schema["components"]["securitySchemes"]
    for path in asks:
        described = schema["paths"][path]["post"]
        assert {"401", "429"} <= described["responses"].keys()
        said = [schemes[name] for one in described["security"] for name in one]
        assert [scheme.get("bearerFormat") for scheme in said if scheme["type"] == "http"] == [None, "JWT"]


@pytest.mark.shows("R142")
def test_each_action_needs_a_grant_of_its_tenant_for_that_model(machines: Machines) -> None:
    """(tenant, model, action) at the doors: infer and train, of two tenants."""
    other, acme = make_tenant("others", models=()), machines.house.tenant
    grant_model(acme, model_pattern="tiny", actions=["infer", "embed", "train"], actor=SYSTEM)
    grant_model(other, model_pattern="tiny", actions=["infer"], actor=SYSTEM)
    wanted = {"training_file": f"file-{0:032x}"}
    table = [
        ("acme", "tiny", "infer", 200),
        ("acme", "tiny", "train", None),
        ("acme", "idle", "train", 404),
        ("others", "tiny", "infer", 200),
        ("others", "tiny", "train", 404),
        ("others", "idle", "infer", 404),
    ]
    for tenant, model, action, status in table:
        token = machines.maker.token(tid=tenant, scope="infer train")
        for door in machines.doors:
            told(door, token, 200)  # knows the new tenant
            path, body = ("fine_tuning/jobs", wanted) if action == "train" else ("chat/completions", _CHAT)
            answer = httpx.post(
                f"{door}/v1/{path}", json={**body, "model": model}, headers={"authorization": f"Bearer {token}"},
                timeout=30,
            )  # fmt: skip
            code = answer.json().get("error", {}).get("code")
            if status is None:  # it may: what is missing is the file, or a trainer
                assert (answer.status_code, code != "model_not_found") in {(400, True), (404, True), (503, True)}
            else:
                assert (answer.status_code, code) == (status, "model_not_found" if status == 404 else None), answer.text
            narrow = machines.maker.token(tid=tenant, scope="embed")
            refused = httpx.post(
                f"{door}/v1/{path}",
                json={**body, "model": model},
                headers={"authorization": f"Bearer {narrow}"},
                timeout=30,
            )
            assert refused.status_code == 403
    grant_model(acme, model_pattern="tiny", actions=["infer", "embed"], actor=SYSTEM)


@pytest.mark.shows("R108")
def test_a_configuration_is_brought_back_in_one_call_everywhere(
    machines: Machines, record_property: Callable[[str, object], None]
) -> None:
    """From the call at the real API until each process serves as before."""
    operator = make_user(platform_role=PlatformRole.OPERATOR)
    headers = {"authorization": f"Token {create_access_token(operator, name='back', actor=SYSTEM).secret}"}
    api = httpx.Client(base_url=f"{machines.house.web_url}/api/", headers=headers, timeout=60)
    token = machines.maker.token(tid="acme", sub="rolled-back")
    doors = [*machines.relays, machines.house.web_url]
    for door in doors:
        told(door, token, 200)
    point = api.get("configuration/history/").json()["results"][0]["epoch"]
    remove_grant(Grant.objects.get(tenant=machines.house.tenant, model_pattern="tiny").pk, actor=SYSTEM)
    create_limit(tenant=machines.house.tenant, metric="requests", window="minute", amount=1, actor=SYSTEM)
    for door in doors:
        told(door, token, 404)
    began = time.monotonic()
    done = api.post("configuration/rollback/", json={"to": point})
    assert (done.status_code, len(done.json()["steps"])) == (200, 2), done.text
    for door in doors:
        told(door, token, 200)
        assert ask(door, token).status_code == 200  # no limit of one a minute either
    took = time.monotonic() - began
    record_property("rolled back in", round(took, 3))
    assert took < 42
    events = api.get("audit/", params={"action": "configuration.rolled_back"}).json()["results"]
    assert events[0]["actor_id"] == str(operator.pk)
    api.close()
