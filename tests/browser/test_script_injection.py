"""What people name things runs nowhere: markup in the names of tenants, models, keys, people and views is text."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest

from dashboard.services import save_view
from gpupool.models import Instance, Model, Node
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import Tenant, TenantRole, User, Webhook
from tests.browser.conftest import Web
from tests.browser.pages import CONSOLE, HOOK, PORTAL
from tests.browser.walk import log_in
from tests.dashboard.people import minutes_ago, pool, tenant, usage

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
EVIL: Final = "<img src=x onerror='window.pwned=1'>\"><script>window.pwned=1</script>{{7*7}}${7*7}"


@pytest.fixture(autouse=True)
def _evil_names(web: Web) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER)
    tenant("empty", ada=TenantRole.OWNER)
    found = pool()
    services.create_api_key(acme, name=EVIL[:80], actor=SYSTEM)
    # Names that services and forms would refuse, too: no page may lean on those.
    Tenant.objects.update(name=EVIL[:120])
    User.objects.filter(email="ada@example.com").update(display_name=EVIL[:80])
    Model.objects.update(name=EVIL[:200], description=EVIL)
    Node.objects.update(name=EVIL[:120])
    Instance.objects.update(reason=EVIL, host=EVIL[:255])
    Webhook.objects.create(pk=HOOK, url=f"https://{EVIL}", events=[EVIL], enabled=False, disabled_reason=EVIL[:200])
    found.version.refresh_from_db()
    usage(acme, at=minutes_ago(3))
    olga = services.create_user(
        email="olga@example.com",
        password="correct-horse-battery",
        display_name=EVIL[:80],
        platform_role="operator",
        actor=SYSTEM,
    )
    save_view(olga, tenant=None, table="console-tenants", name=EVIL[:80], query="q=%3Cscript%3E", actor=SYSTEM)


def test_markup_in_names_is_text_on_every_page(open_page: OpenPage) -> None:
    for name, pages in (("olga", CONSOLE), ("ada", PORTAL)):
        page = open_page()
        log_in(page, name)
        for path in [*pages, f"{pages[0]}?q={EVIL[:60]}"]:
            page.goto(path)
            page.locator("h1, h2").first.wait_for()
            assert page.evaluate("window.pwned") is None, path
            assert page.locator("img[src=x]").count() == 0, path
        page.keyboard.press("Control+k")
        page.locator("#palette input").fill("img")
        page.locator("#palette [role=option]").first.wait_for()
        assert page.evaluate("window.pwned") is None
