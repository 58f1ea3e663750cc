"""The platform's own webhooks in the console: what is done to them, who may, and that no tenant's are reached here."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants.models import AuditEvent, Channel, Delivery, Notice, TenantRole, User, Webhook
from tenants.policies.notices import PLATFORM_KINDS, NoticeKind
from tenants.services.webhooks import disable_failing_webhook, host_of
from tests.dashboard.people import person, tenant
from tests.dashboard.tenancy_rows import rows_of, text_of

pytestmark = pytest.mark.django_db

SETTINGS = "/console/settings/"
NEW = f"{SETTINGS}webhooks/new/"
ASKED = ("change/", "secret/", "delete/")
DONE = ("test/", "switch/off/", "switch/on/", *ASKED)


@pytest.fixture
def hook() -> Webhook:
    return Webhook.objects.create(url="https://hooks.example.com/ours")


def address(webhook: Webhook) -> str:
    return f"{SETTINGS}webhooks/{webhook.pk}/"


def sent(webhook: Webhook, kind: NoticeKind, *, state: str, **more: object) -> Delivery:
    notice = Notice.objects.create(kind=kind.value, dedupe_key=f"{kind}:{state}")
    return Delivery.objects.create(notice=notice, channel=Channel.WEBHOOK, webhook=webhook, state=state, **more)


def test_settings_list_the_platforms_webhooks_with_their_state_and_no_tenants(operator: Client) -> None:
    assert "No webhooks" in text_of(operator.get(SETTINGS))
    ours = Webhook.objects.create(url="https://on.example.com/x", events=["objective_burning"])
    failing = Webhook.objects.create(url="https://failing.example.com/x", failing_since=timezone.now())
    Webhook.objects.create(url="https://off.example.com/x", enabled=False, disabled_reason="It answered 410.")
    Webhook.objects.create(tenant=tenant("acme"), url="https://acme.example.com/x")
    shown = text_of(operator.get(SETTINGS))
    assert (address(ours) in shown, address(failing) in shown, "acme.example.com" in shown) == (True, True, False)
    assert re.findall(r'class="pill[^"]*">(On|Off|Failing)<', shown) == ["Off", "Failing", "On"]  # newest first
    assert "It answered 410." in shown


def test_a_secret_of_the_platforms_is_in_one_answer_and_a_new_one_in_another(operator: Client) -> None:
    made = operator.post(NEW, {"url": "https://8.8.8.8/x", "events": ["objective_burning"]})
    webhook, secret = Webhook.objects.get(), made.context["secret"]
    assert (webhook.tenant, webhook.events) == (None, ["objective_burning"])
    assert f'href="{address(webhook)}"' in text_of(made)
    assert "no-store" in made.headers["Cache-Control"]
    assert not any(secret in text_of(operator.get(page)) for page in (address(webhook), SETTINGS))
    asked = text_of(operator.get(f"{address(webhook)}secret/"))
    assert (secret in asked, "You see it once." in asked) == (False, True)
    rotated = operator.post(f"{address(webhook)}secret/").context["secret"]
    assert rotated != secret
    assert not any(rotated in text_of(operator.get(page)) for page in (address(webhook), SETTINGS))


def test_what_cannot_be_posted_to_is_said_in_the_form(operator: Client) -> None:
    for url in ("http://127.0.0.1/x", "https://10.0.0.1/x", "file:///etc/passwd", "x", ""):
        refused = operator.post(NEW, {"url": url})
        assert (refused.status_code, 'class="error"' in text_of(refused)) == (422, True), url
    assert not Webhook.objects.exists()


def test_the_form_offers_what_the_platform_is_told_of_and_nothing_else(operator: Client) -> None:
    offered = set(re.findall(r'name="events" value="(\w+)"', text_of(operator.get(NEW))))
    assert offered == PLATFORM_KINDS
    refused = operator.post(NEW, {"url": "https://8.8.8.8/x", "events": ["key_expiring"]})
    assert (refused.status_code, 'id="id_events_error"' in text_of(refused)) == (422, True)


def test_all_that_is_done_to_one_is_done_by_a_person_and_audited(operator: Client) -> None:
    operator.post(NEW, {"url": "https://8.8.8.8/x"})
    webhook = Webhook.objects.get()
    page = address(webhook)
    operator.post(f"{page}test/")
    assert "under way already" in text_of(operator.post(f"{page}test/", follow=True))
    assert "It is off" in text_of(operator.post(f"{page}switch/off/", follow=True))
    assert Delivery.objects.get().state == "failed"
    assert "enable it first" in text_of(operator.post(f"{page}test/", follow=True))
    operator.post(f"{page}switch/on/")
    operator.post(f"{page}secret/")
    assert "nothing is posted to it" in text_of(operator.get(f"{page}delete/"))
    gone = operator.post(f"{page}delete/", follow=True)
    assert (gone.redirect_chain[-1][0], "The webhook is deleted." in text_of(gone)) == (SETTINGS, True)
    assert not Webhook.objects.exists()
    rows = AuditEvent.objects.filter(subject_id=webhook.pk).order_by("pk")
    olga = User.objects.get(email="olga@example.com").pk
    assert [(row.action.removeprefix("webhook."), row.actor_id, row.tenant_id) for row in rows] == [
        (action, olga, None) for action in ("created", "tested", "changed", "changed", "secret_rotated", "deleted")
    ]


def test_its_address_and_events_are_changed_and_the_rest_stays(operator: Client) -> None:
    operator.post(NEW, {"url": "https://8.8.8.8/x", "events": ["objective_burning"]})
    hook = Webhook.objects.get()
    asked = text_of(operator.get(f"{address(hook)}change/"))
    assert 'value="https://8.8.8.8/x"' in asked
    assert re.findall(r'value="(\w+)"[^>]* checked', asked) == ["objective_burning"]
    refused = operator.post(f"{address(hook)}change/", {"url": "https://10.0.0.1/x"})
    assert (refused.status_code, 'class="error"' in text_of(refused)) == (422, True)
    assert f'action="{address(hook)}change/"' in text_of(refused)
    answer = operator.post(f"{address(hook)}change/", {"url": "https://8.8.4.4/y"}, HTTP_HX_REQUEST="true")
    assert answer.headers["HX-Redirect"] == address(hook)
    changed = Webhook.objects.get()
    assert (changed.url, changed.events, changed.secret_version) == ("https://8.8.4.4/y", [], hook.secret_version)
    row = AuditEvent.objects.filter(action="webhook.changed").get()
    assert (row.before["host"], row.after["host"]) == ("8.8.8.8", "8.8.4.4")


def test_an_event_that_new_ones_may_not_choose_stays_when_the_rest_is_changed(operator: Client, hook: Webhook) -> None:
    Webhook.objects.update(events=["key_expiring"])
    assert re.findall(r'value="(\w+)"[^>]* checked', text_of(operator.get(f"{address(hook)}change/"))) == [
        "key_expiring"
    ]
    operator.post(f"{address(hook)}change/", {"url": "https://8.8.8.8/x", "events": ["key_expiring"]})
    assert Webhook.objects.get().events == ["key_expiring"]


def test_deliveries_are_narrowed_by_their_state_and_come_as_csv(operator: Client, hook: Webhook) -> None:
    assert "Nothing was sent yet" in text_of(operator.get(address(hook)))
    sent(hook, NoticeKind.OBJECTIVE_BURNING, state="delivered", attempts=1, last_status=204)
    sent(hook, NoticeKind.REQUEST_OPENED, state="failed", attempts=9, last_error="It answered 500.")
    assert len(operator.get(address(hook)).context["page"].rows) == 2
    (row,) = operator.get(address(hook), {"state": "failed"}).context["page"].rows
    assert row.notice.kind == "request_opened"
    assert "No delivery matches" in text_of(operator.get(address(hook), {"state": "pending"}))
    sheet = operator.get(address(hook), {"format": "csv", "state": "failed"})
    assert 'filename="console-deliveries.csv"' in sheet.headers["Content-Disposition"]
    (line,) = rows_of(sheet)
    assert (line["kind"], line["state"], line["attempts"]) == ("request_opened", "failed", "9")


@pytest.mark.parametrize("of_tenant", [False, True])
def test_webhooks_and_their_deliveries_take_as_many_queries_however_many_there_are(
    root: Client, of_tenant: bool
) -> None:
    whose = tenant("acme") if of_tenant else None
    settings = f"/t/{whose.slug}/settings/" if whose else SETTINGS
    taken = list[list[int]]()
    for number in (2, 30):
        hooks = Webhook.objects.bulk_create(
            Webhook(tenant=whose, url=f"https://{n}.example.com/{number}") for n in range(number)
        )
        notices = Notice.objects.bulk_create(
            Notice(tenant=whose, kind=NoticeKind.OBJECTIVE_BURNING.value, dedupe_key=f"{number}-{n}")
            for n in range(number)
        )
        Delivery.objects.bulk_create(
            Delivery(notice=one, channel=Channel.WEBHOOK, webhook=hooks[0], state="failed", last_error=f"It hurts {n}.")
            for n, one in enumerate(notices)
        )
        one_page = f"{settings}webhooks/{hooks[0].pk}/"
        taken.append([])
        for page in (settings, one_page, f"{one_page}?state=failed"):
            assert root.get(page).status_code == 200  # whatever is kept for a while is there afterwards
            with CaptureQueriesContext(connection) as queries:
                shown = root.get(page)
            taken[-1].append(len(queries))
        assert len(shown.context["page"].rows) == number
    assert taken[0] == taken[1]


def test_who_only_reads_sees_their_hosts_without_buttons_and_changes_nothing(client: Client, hook: Webhook) -> None:
    client.force_login(person("rita", platform_role="read_only"))
    shown = text_of(client.get(SETTINGS)) + text_of(client.get(address(hook)))
    assert (host_of(hook.url) in shown, "New webhook" in shown, "Send a test" in shown) == (True, False, False)
    theirs = Webhook.objects.create(tenant=tenant("acme"), url="https://acme.example.com/x")
    shown += text_of(client.get("/t/acme/settings/")) + text_of(client.get(f"/t/acme/settings/webhooks/{theirs.pk}/"))
    assert shown.count("acme.example.com") == 2
    assert "example.com/" not in shown  # the rest of it may hold a token
    for deed in DONE:
        assert f"{address(hook)}{deed}" not in shown, deed
        assert client.post(f"{address(hook)}{deed}").status_code == 403, deed
    assert {client.get(path).status_code for path in (NEW, *(f"{address(hook)}{one}" for one in ASKED))} == {403}
    assert client.post(NEW, {"url": "https://8.8.8.8/x"}).status_code == 403
    hook.refresh_from_db()
    assert (hook.enabled, AuditEvent.objects.filter(action__startswith="webhook.").count()) == (
        True,
        0,
    )


def test_a_tenants_owner_reaches_none_of_it(client: Client, hook: Webhook) -> None:
    tenant("acme", ada=TenantRole.OWNER)
    client.force_login(User.objects.get(email="ada@example.com"))
    assert {client.get(path).status_code for path in (SETTINGS, NEW, address(hook))} == {403}
    assert {client.post(f"{address(hook)}{deed}").status_code for deed in DONE} == {403}
    assert Webhook.objects.get().enabled


def test_a_tenants_webhook_is_not_the_platforms_nor_the_platforms_a_tenants(root: Client, hook: Webhook) -> None:
    theirs = Webhook.objects.create(tenant=tenant("acme"), url="https://acme.example.com/x")
    for base in (address(theirs), f"/t/acme/settings/webhooks/{hook.pk}/"):
        assert {root.get(f"{base}{deed}").status_code for deed in ("", "?format=csv", *ASKED)} == {404}, base
        assert {root.post(f"{base}{deed}").status_code for deed in DONE} == {404}, base
    assert root.post(f"{address(hook)}switch/sideways/").status_code == 404
    assert root.get(f"/t/acme/settings/webhooks/{theirs.pk}/").status_code == 200
    assert set(Webhook.objects.values_list("enabled", "secret_version")) == {(True, 1)}
    assert Webhook.objects.count() == 2


def test_one_that_failed_says_why_and_is_switched_on_again(operator: Client, hook: Webhook) -> None:
    disable_failing_webhook(hook.pk, reason="It answered 410.", now=timezone.now())
    shown = text_of(operator.get(address(hook)))
    assert ("It answered 410." in shown, "/test/" in shown, "/switch/on/" in shown) == (True, False, True)
    assert "Send a test" not in shown
    operator.post(f"{address(hook)}switch/on/")
    hook.refresh_from_db()
    assert (hook.enabled, hook.disabled_reason) == (True, "")


def test_what_is_deleted_meanwhile_is_404(operator: Client, hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    from dashboard import webhook_pages

    def look(*_asked: object) -> Webhook:
        Webhook.objects.all().delete()
        return hook

    monkeypatch.setattr(webhook_pages, "get_webhook", look)
    form = {"url": "https://8.8.8.8/x"}
    assert {operator.post(f"{address(hook)}{deed}", form).status_code for deed in DONE} == {404}
