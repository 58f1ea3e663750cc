"""Logging in and one's security in Chromium: a passkey of a virtual authenticator, codes computed as an app does."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.conf import settings as django_settings

from tenants.models import Membership, TenantRole
from tests.browser.conftest import Web
from tests.browser.test_accessible import violations, violations_in_both_themes
from tests.browser.walk import log_in_by_form
from tests.dashboard.people import PASSWORD, tenant

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]


@pytest.fixture(autouse=True)
def _acme(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.url = f"http://localhost:{web.port}"  # browsers give passkeys to names only
    monkeypatch.setattr(type(django_settings.GATEHOUSE), "public_web_url", property(lambda _: web.url))
    tenant("acme", ada=TenantRole.OWNER, vic=TenantRole.VIEWER)


def code_of(secret: str, *, step: int = 1) -> str:
    """The code of the step of time before, of, or after now: 0, 1, 2."""
    counters = list(yield_hotp_counters_from_time())
    return str(format_hotp_value(hotp_value(secret.replace(" ", ""), counters[step])))


def confirm(page: "Page") -> None:
    page.get_by_label("Password").fill(PASSWORD)
    page.locator("button.primary").click()


def virtual_authenticator(page: "Page") -> None:
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    session.send("WebAuthn.addVirtualAuthenticator", {"options": options})


def log_out(page: "Page") -> None:
    page.locator("details.who summary").click()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login/")


def test_an_authenticator_app_from_setting_up_to_logging_in(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    page.goto("/login/")
    shoot(page, "login")
    log_in_by_form(page, "ada")
    page.locator("details.who summary").click()
    page.get_by_role("link", name="Security").click()
    page.get_by_role("heading", name="Authenticator app").wait_for()
    shoot(page, "security-bare")
    page.get_by_role("link", name="Set up").click()
    found = violations_in_both_themes(page)
    shoot(page, "confirm")
    confirm(page)
    page.get_by_role("img", name="The secret as a QR code").wait_for()
    secret = page.get_by_role("textbox", name="Secret").input_value()
    found += violations_in_both_themes(page)
    shoot(page, "app")
    page.get_by_label("Code that the app shows").fill(code_of(secret))
    page.get_by_role("button", name="Set up").click()
    page.get_by_text("This is the only time that they are shown.").wait_for()
    codes = page.locator("#recovery-codes").inner_text().split()
    assert len(codes) == 10
    found += violations_in_both_themes(page)
    shoot(page, "recovery-codes")
    page.get_by_role("link", name="Done").click()
    page.get_by_text("10 are left").wait_for()
    found += violations_in_both_themes(page)
    shoot(page, "security")
    log_out(page)
    page.locator("#id_username").fill("ada@example.com")
    page.locator("#id_password").fill(PASSWORD)
    page.locator("button.primary").click()
    page.get_by_role("heading", name="Second factor").wait_for()
    page.get_by_label("Code from the app").fill("000000")
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("This code is not right").wait_for()
    found += violations_in_both_themes(page)
    shoot(page, "second-factor")
    page.get_by_label("Code from the app").fill(code_of(secret, step=2))
    page.get_by_role("button", name="Go on").click()
    page.wait_for_url("**/t/acme/")
    assert found == []


def test_a_passkey_logs_in_on_its_own_and_as_a_second_factor(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    virtual_authenticator(page)
    log_in_by_form(page, "ada")
    page.goto("/security/passkeys/add/")
    confirm(page)
    page.get_by_label("Name").fill("work laptop")
    shoot(page, "passkey-add")
    page.get_by_role("button", name="Add").click()
    page.get_by_text("This is the only time that they are shown.").wait_for()
    page.get_by_role("link", name="Done").click()
    page.get_by_text("work laptop").wait_for()
    shoot(page, "security-passkey")
    log_out(page)
    page.get_by_role("button", name="Log in with a passkey").click()
    page.wait_for_url("**/t/acme/")
    log_out(page)
    page.locator("#id_username").fill("ada@example.com")
    page.locator("#id_password").fill(PASSWORD)
    page.locator("button.primary").click()
    page.get_by_role("button", name="Use a passkey").click()
    page.wait_for_url("**/t/acme/")
    page.goto("/security/")
    page.get_by_role("link", name="Remove work laptop").click()
    confirm(page)
    page.get_by_role("button", name="Remove").click()
    page.get_by_text("The passkey is removed.").wait_for()
    assert not Authenticator.objects.exists()
    log_out(page)
    page.get_by_role("button", name="Log in with a passkey").click()
    page.get_by_text("This passkey is not known here.").wait_for()


@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "zh-hans")])
def test_members_and_an_invitation_from_link_to_membership(
    open_page: OpenPage, shoot: Shoot, theme: str, language: str
) -> None:
    page = open_page(theme=theme, language=language)
    log_in_by_form(page, "ada", then="/t/acme/members/")
    shoot(page, f"members-{theme}-{language}")
    found = violations(page)
    page.locator(".actions a.primary").click()
    page.locator("dialog #id_email").fill("neo@example.com")
    page.locator("dialog #id_role").select_option("developer")
    shoot(page, f"invite-{theme}-{language}")
    found += violations(page)
    page.locator("dialog button.primary").click()
    link = page.locator("#new-secret").input_value()
    found += violations(page)
    shoot(page, f"invited-{theme}-{language}")
    page.keyboard.press("Escape")
    page.get_by_text("neo@example.com").wait_for()
    shoot(page, f"members-invited-{theme}-{language}")
    assert link not in page.content()
    guest = open_page(theme=theme, language=language)
    guest.goto(link)
    found += violations(guest)
    shoot(guest, f"invitation-{theme}-{language}")
    guest.locator("#id_display_name").fill("Neo N.")
    guest.locator("#id_password").fill("short")
    guest.locator("#id_again").fill("short")
    guest.locator("button.primary").click()
    guest.locator(".field .error").wait_for()
    guest.locator("#id_password").fill("a-long-and-new-phrase")
    guest.locator("#id_again").fill("a-long-and-new-phrase")
    guest.locator("button.primary").click()
    guest.wait_for_url("**/t/acme/")
    assert Membership.objects.get(user__email="neo@example.com").role == "developer"
    guest.goto("/t/acme/members/")
    assert guest.locator(".actions a").count() == 0
    page.goto("/t/acme/members/")
    page.get_by_text("Neo N.").first.wait_for()
    shoot(page, f"members-joined-{theme}-{language}")
    assert found == []


def test_a_member_gets_another_role_and_leaves(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    log_in_by_form(page, "ada", then="/t/acme/members/")
    page.get_by_role("link", name="Change the role of Vic").click()
    page.get_by_role("dialog").get_by_label("Role").select_option("admin")
    shoot(page, "member-role")
    page.get_by_role("button", name="Change the role").click()
    page.get_by_text("Vic has another role now.").wait_for()
    page.get_by_role("link", name="Remove Vic").click()
    page.get_by_role("dialog").get_by_text("They see nothing of Acme any more").wait_for()
    shoot(page, "member-remove")
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.get_by_text("Vic is no member any more.").wait_for()
    page.get_by_role("link", name="Remove Ada").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.get_by_text("This is the last owner").wait_for()
    assert Membership.objects.get().user.email == "ada@example.com"


def test_the_pages_are_usable_on_a_narrow_screen(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(width=390, height=844)
    log_in_by_form(page, "ada")
    for path in ("/security/", "/security/password/", "/t/acme/members/", "/t/acme/members/invite/"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        shoot(page, "narrow-" + path.strip("/").replace("/", "-"))
