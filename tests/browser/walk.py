"""Steps that several walks through the pages share."""

import re
from typing import TYPE_CHECKING

from django.conf import settings
from django.test import Client

from tenants.models import User
from tests.dashboard.people import PASSWORD

if TYPE_CHECKING:
    from playwright.sync_api import Page


def log_in(page: "Page", name: str, *, then: str = "/") -> None:
    """Arrive at `then`, logged in as after the form, which `log_in_by_form` walks through; two pages sooner."""
    signed_in(page, name)
    page.goto(then)


def signed_in(page: "Page", name: str) -> None:
    """Give the browser NAME's session; it goes nowhere."""
    client = Client()
    client.force_login(User.objects.get(email=f"{name}@example.com"))
    key = client.cookies[settings.SESSION_COOKIE_NAME].value
    page.context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": key, "domain": "127.0.0.1", "path": "/"}])


def log_in_by_form(page: "Page", name: str, *, then: str = "/") -> None:
    """Log in through the form and arrive at `then`."""
    page.goto(f"/login/?next={then}")
    page.locator("#id_username").fill(f"{name}@example.com")
    page.locator("#id_password").fill(PASSWORD)
    page.locator("button.primary").click()
    page.wait_for_url(re.compile(r"^[^?]*/(console|t)/"))  # not where the form's address says that it leads


def wait_for_pill(page: "Page", state: str) -> None:
    """Until the live pill says `state`."""
    page.locator(f'#live[data-value="{state}"]').wait_for()
