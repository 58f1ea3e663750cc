"""The pages of requests: filters in the address, one request, stages, refusals; a tenant sees its own alone."""

import csv
import io
import json
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from core.ids import uuid7_from
from dashboard.live.base import Gone, Viewer
from dashboard.live.encoders import Tail
from dashboard.live.feeds.reqlog import NEWEST, ReqlogFeed
from dashboard.reads.requests import stages_of
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import ApiKey, Tenant, TenantRole, UsageRecord, User
from tenants.refusals import RefusalBatch, RefusalCount
from tenants.services.ledger import record_usage
from tenants.services.refusals import record_refusals
from tests.dashboard.people import person, tenant
from tests.tenants.usage_rows import usage_row

pytestmark = pytest.mark.django_db
PROCESS = uuid4()
_numbers = iter(range(1, 1_000_000))
TIMES = {"queue_ms": 10.0, "tokenise_ms": 4.0, "connect_ms": 2.0, "ttft_ms": 112.0, "first_decode_ms": 20.0}


def _add(owner: Tenant, *, key: ApiKey | None = None, seconds_ago: float = 60, **more: Any) -> UUID:
    number, at = next(_numbers), timezone.now() - timedelta(seconds=seconds_ago)
    identity = uuid7_from(int(at.timestamp() * 1000), number % 4096, number)
    values = {**TIMES, "duration_ms": 632.0, "streamed": True, "tenant_id": owner.pk, **more}
    row = usage_row(PROCESS, number, id=identity, started_at=at.timestamp(), key_id=key.pk if key else None, **values)
    record_usage([row])
    return identity


@pytest.fixture
def acme() -> Tenant:
    return tenant("acme", ada=TenantRole.VIEWER)


@pytest.fixture
def globex() -> Tenant:
    return tenant("globex", gus=TenantRole.OWNER)


@pytest.fixture
def ada(client: Client, acme: Tenant) -> Client:
    client.force_login(User.objects.get(email="ada@example.com"))
    return client


def _text(client: Client, path: str, **query: object) -> str:
    response = client.get(f"{path}?{urlencode(query)}" if query else path)
    assert response.status_code == 200, path
    return response.content.decode()


def _shown(client: Client, path: str, **query: object) -> set[str]:
    found = client.get(f"{path}?{urlencode(query)}").context["lines"]
    return {str(line.row.pk) for line in found}


@pytest.mark.shows("R91")
def test_one_request_shows_where_its_time_went_stage_by_stage(operator: Client, acme: Tenant) -> None:
    key = services.create_api_key(acme, name="etl", actor=SYSTEM).key
    found = _text(operator, f"/console/requests/{_add(acme, key=key, engine_request_id='cmpl-7')}/")
    for words in ("Tokenise", "Queue", "Connect", "Prefill", "First decode", "Decode", "cmpl-7", "etl"):
        assert words in found
    assert '<rect class="stage-prefill"' in found


def test_stages_join_from_arrival_to_the_end_and_what_is_unknown_leaves_a_gap() -> None:
    row = UsageRecord(duration_ms=632.0, **TIMES)
    assert [(s.name, s.start, s.ms) for s in stages_of(row)] == [
        ("tokenise", 0.0, 4.0), ("queue", 4.0, 6.0), ("connect", 10.0, 2.0), ("prefill", 12.0, 100.0),
        ("first_decode", 112.0, 20.0), ("decode", 132.0, 500.0),
    ]  # fmt: skip
    whole = UsageRecord(duration_ms=50.0, queue_ms=1.0, connect_ms=0.0)
    assert [(s.name, s.start, s.ms) for s in stages_of(whole)] == [("queue", 0.0, 1.0), ("answer", 1.0, 49.0)]
    old = UsageRecord(duration_ms=632.0, ttft_ms=112.0)
    assert [(s.name, s.start, s.ms) for s in stages_of(old)] == [("decode", 112.0, 520.0)]
    assert stages_of(UsageRecord(duration_ms=9.0)) == []


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ({"model": "big"}, {"model": "big"}),
        ({"outcome": "faults"}, {"outcome": "failed", "status": 502}),
        ({"class": "4"}, {"status": 404}),
        ({"status": "207"}, {"status": 207}),
        ({"door": "drf"}, {"door": "drf"}),
        ({"api": "embeddings"}, {"api": "embeddings"}),
        ({"speed": "slow"}, {"ttft_ms": 2_500.0, "duration_ms": 3_000.0}),
        ({"min_ttft_ms": "800"}, {"ttft_ms": 801.0, "duration_ms": 900.0}),
        ({"min_tpot_ms": "300"}, {"duration_ms": 1_112.0}),
        ({"min_queue_ms": "50"}, {"queue_ms": 60.0}),
        ({"code": "upstream_error"}, {"error_code": "upstream_error"}),
    ],
)
def test_the_address_says_which_requests_are_shown(
    operator: Client, acme: Tenant, query: dict[str, str], values: dict[str, Any]
) -> None:
    _add(acme)
    wanted = str(_add(acme, **values))
    assert _shown(operator, "/console/requests/", **query) == {wanted}


def test_an_address_that_makes_no_sense_is_passed_over(operator: Client, acme: Tenant) -> None:
    one = str(_add(acme))
    odd = {
        "min_ttft_ms": "nan",
        "status": "x",
        "key": "y",
        "before": "z",
        "outcome": "'",
        "model": "\x00",
        "class": "9",
    }
    assert _shown(operator, "/console/requests/", **odd, tenant="\x00", zone="Mars", range="1y") == {one}


def test_pages_go_back_and_forth_by_the_last_row_seen(operator: Client, acme: Tenant) -> None:
    ids = [str(_add(acme, seconds_ago=200 - place)) for place in range(60)]
    first = operator.get("/console/requests/").context["found"]
    assert [str(row.pk) for row in first.rows] == ids[:9:-1]
    assert _shown(operator, "/console/requests/", before=first.older) == set(ids[:10])
    back = operator.get(f"/console/requests/?before={first.older}").context["found"]
    assert _shown(operator, "/console/requests/", after=back.newer) == set(ids[10:])


def test_counts_come_from_the_sums_and_an_exact_one_where_it_is_asked_for(operator: Client, acme: Tenant) -> None:
    for outcome in ("success", "success", "failed"):
        _add(acme, outcome=outcome, status=200 if outcome == "success" else 502)
    found = _text(operator, "/console/requests/")
    assert "tiny (3)" in found
    assert "Failures of ours (1)" in found
    assert "about 3 in this range" in found
    assert "1 request" in _text(operator, "/console/requests/", outcome="failed", door="relay", count="exact")


@pytest.mark.parametrize("path", ["/console/requests/", "/t/acme/requests/"])
def test_the_number_of_queries_does_not_grow_with_rows(operator: Client, acme: Tenant, path: str) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as caught:
            _text(operator, path)
        return len(caught)

    keys = [services.create_api_key(acme, name=f"key-{n}", actor=SYSTEM).key for n in range(3)]
    _add(acme, key=keys[0])
    _text(operator, path)
    few = queries()
    for place in range(30):
        _add(acme, key=keys[place % 3], model=f"model-{place % 5}")
    assert queries() == few
    assert few < 25


def test_a_search_for_an_id_leads_to_the_request_and_for_a_tenant_to_its_requests(
    operator: Client, acme: Tenant
) -> None:
    one = _add(acme)
    assert operator.get(f"/console/requests/?q={one}").headers["Location"] == f"/console/requests/{one}/"
    assert operator.get("/console/requests/?q=Acme").headers["Location"] == "/console/requests/?tenant=acme"
    assert "No request has this id" in _text(operator, "/console/requests/", q=str(uuid4()))


def test_the_file_has_all_that_the_filters_leave_and_no_formula(operator: Client, acme: Tenant) -> None:
    _add(acme, model="=cmd|x", output_tokens=11)
    _add(acme, model="tiny")
    response = operator.get("/console/requests/?format=csv&model=%3Dcmd%7Cx")
    (row,) = csv.DictReader(io.StringIO(b"".join(response).decode()))
    assert (row["tenant"], row["model"], row["outcome"], row["queue_ms"]) == ("acme", "'=cmd|x", "success", "10.0")
    assert float(row["tpot_ms"]) == 52.0


def test_a_tenants_member_sees_its_requests_and_nobody_elses(ada: Client, acme: Tenant, globex: Tenant) -> None:
    key = services.create_api_key(globex, name="secret-key-name", actor=SYSTEM).key
    mine, theirs = _add(acme), _add(globex, key=key, model="secret-model")
    assert _shown(ada, "/t/acme/requests/") == {str(mine)}
    for query in (
        {"tenant": "globex"}, {"key": key.pk}, {"model": "secret-model"}, {"q": theirs}, {"before": theirs},
        {"after": UUID(int=theirs.int - 1)},
    ):  # fmt: skip
        found = _text(ada, "/t/acme/requests/", **query)
        assert f"/{theirs}/" not in found
        assert str(theirs)[:13] + "…" not in found
        assert "secret-key-name" not in found
    assert ada.get(f"/t/acme/requests/{theirs}/").status_code == 404
    assert ada.get(f"/t/acme/requests/{mine}/").status_code == 200
    for path in ("", "stages/", "refused/", f"{theirs}/"):
        assert ada.get(f"/t/globex/requests/{path}").status_code == 404
        assert ada.get(f"/console/requests/{path}").status_code == 403
    lines = b"".join(ada.get("/t/acme/requests/?format=csv&tenant=globex")).decode()
    assert str(mine) in lines
    assert str(theirs) not in lines
    stages = ada.get("/t/acme/requests/stages/?model=secret-model").context
    assert ([one.model for one in stages["models"]], stages["chosen"]) == (["tiny"], "")


def test_stages_are_shown_by_model_with_the_slowest_percent(ada: Client, acme: Tenant) -> None:
    assert "No requests in this range" in _text(ada, "/t/acme/requests/stages/")
    for _ in range(3):
        _add(acme)
    found = _text(ada, "/t/acme/requests/stages/")
    for words in (
        "P50",
        "P90",
        "P99",
        "100 ms",
        "First decode",
        "The slowest one of 3 streamed requests",
        "newest 1,000",
    ):
        assert words in found


def test_refusals_are_shown_by_reason_to_their_own_tenant(ada: Client, acme: Tenant, globex: Tenant) -> None:
    minute = int(timezone.now().timestamp() // 60) * 60
    key = services.create_api_key(acme, name="etl", actor=SYSTEM).key
    counts = [
        RefusalCount(acme.pk, key.pk, "tiny", "rate_limit_exceeded", 429, "tokens", "minute", minute, 41),
        RefusalCount(globex.pk, None, "tiny", "other_reason", 503, "", "", minute, 7),
    ]
    record_refusals([RefusalBatch(uuid4(), 1, counts)])
    found = _text(ada, "/t/acme/requests/refused/")
    assert "rate_limit_exceeded" in found
    assert "A limit is reached." in found
    assert "41" in found
    assert "etl" in found
    assert "other_reason" not in found


def test_nothing_that_was_written_by_people_is_markup(operator: Client, acme: Tenant) -> None:
    evil = '<script>alert("x")</script>'
    key = services.create_api_key(acme, name=evil, actor=SYSTEM).key
    one = _add(acme, key=key, model=evil, engine_request_id=evil, error_code=evil[:64])
    for path in ("/console/requests/", f"/console/requests/{one}/", "/console/requests/stages/"):
        assert evil not in _text(operator, path)


def _viewer(**roles: str) -> Viewer:
    return Viewer(uuid4(), "", roles)


def test_the_feed_is_for_those_who_may_see_the_usage_and_of_their_tenant_alone(acme: Tenant, globex: Tenant) -> None:
    feed = ReqlogFeed()
    assert feed.may_watch(_viewer(acme="viewer"), "tenant:acme")
    assert not feed.may_watch(_viewer(acme="owner"), "tenant:globex")
    assert not feed.may_watch(_viewer(acme="owner"), "")
    assert not feed.may_watch(_viewer(acme="owner"), "cluster")
    assert feed.may_watch(Viewer(uuid4(), "read_only"), "")
    mine, theirs = _add(acme, seconds_ago=30), _add(globex)
    encoder = feed.encoder()
    now = timezone.now()
    frame = json.loads(encoder.keyframe(feed.read("tenant:acme", now=now), epoch=1, seq=1, at=now))
    assert [row["id"] for row in frame["rows"]] == [str(mine)]
    assert str(theirs) not in json.dumps(frame)
    later = _add(acme, seconds_ago=1)
    more = encoder.delta(feed.read("tenant:acme", now=now), epoch=1, seq=2, at=now)
    assert more is not None
    assert [row["id"] for row in json.loads(more)["more"]] == [str(later)]
    assert len(json.loads(encoder.keyframe(feed.read("", now=now), epoch=1, seq=3, at=now))["rows"]) == 3
    with pytest.raises(Gone):
        feed.read("tenant:none", now=now)


def test_the_feed_tells_requests_as_they_end_however_long_they_took(acme: Tenant) -> None:
    feed, now = ReqlogFeed(), timezone.now()
    quick = [_add(acme, seconds_ago=1) for _ in range(NEWEST + 5)]
    # Before the slow one, which is settled when this transaction began: not by now, which may be any time later.
    UsageRecord.objects.filter(pk__in=quick).update(settled_at=F("settled_at") - timedelta(seconds=1))
    encoder = feed.encoder()
    encoder.keyframe(feed.read("tenant:acme", now=now), epoch=1, seq=1, at=now)
    slow = _add(acme, seconds_ago=300, duration_ms=299_000.0)  # came before all of them
    for scope in ("tenant:acme", ""):
        state = feed.read(scope, now=now)
        assert isinstance(state, Tail)
        assert state.rows[-1][0] == str(slow)
    more = encoder.delta(feed.read("tenant:acme", now=now), epoch=1, seq=2, at=now)
    assert more is not None
    assert [row["id"] for row in json.loads(more)["more"]] == [str(slow)]


def test_people_who_only_read_see_the_console_pages(client: Client, acme: Tenant) -> None:
    client.force_login(person("rita", platform_role="read_only"))
    _add(acme)
    for path in ("", "stages/", "refused/"):
        _text(client, f"/console/requests/{path}")


def test_where_nothing_matches_it_is_said_where_refused_requests_are(operator: Client) -> None:
    found = _text(operator, "/console/requests/", outcome="faults")
    assert "No request matches" in found
    assert "Refused ones are under Refused." in found


def test_clearing_what_is_sought_leaves_the_range(operator: Client) -> None:
    found = _text(operator, "/console/requests/", outcome="faults", range="7d")
    assert 'href="?range=7d"' in found
