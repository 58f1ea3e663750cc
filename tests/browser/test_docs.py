"""The page that shows the API: drawn from our own files, under our content security policy."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

_DRAWN_SECONDS = 60.0  # hundreds of operations, drawn by a script, on a machine that runs other tests too

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.django_db(transaction=True)


def is_shown(page: "Page", path: str) -> bool:
    """Scrolls on where it is not: groups of operations are drawn when one comes near them, and again from above where
    they were passed too soon for that."""
    if page.locator(f'[data-path="{path}"]').count():
        return True
    page.evaluate("() => { const before = scrollY; scrollBy(0, 700); if (scrollY === before) scrollTo(0, 0); }")
    return False


def test_the_api_is_shown_with_both_its_parts(
    open_page: "Callable[..., Page]", shoot: "Callable[[Page, str], None]"
) -> None:
    page = open_page()
    page.goto("/api/docs")
    page.wait_for_selector(".opblock", timeout=_DRAWN_SECONDS * 1000)
    shoot(page, "api-docs")
    for path in ("/api/instances/", "/api/tenants/{slug}/keys/", "/v1/chat/completions", "/v1/models"):
        wait_until(partial(is_shown, page, path), f"{path} is shown", deadline_seconds=_DRAWN_SECONDS)
