"""Steps that several walks through the pages share."""

import re
from typing import TYPE_CHECKING

from tests.dashboard.people import PASSWORD

if TYPE_CHECKING:
    from playwright.sync_api import Page


def log_in(page: "Page", name: str, *, then: str = "/") -> None:
    """Log in through the form and arrive at `then`."""
    page.goto(f"/login/?next={then}")
    page.locator("#id_username").fill(f"{name}@example.com")
    page.locator("#id_password").fill(PASSWORD)
    page.locator("button.primary").click()
    page.wait_for_url(re.compile(r"/(console|t)/"))


def wait_for_pill(page: "Page", state: str) -> None:
    """Until the live pill says `state`."""
    page.locator(f'#live[data-value="{state}"]').wait_for()
