"""The page that shows the API: drawn from our own files, under our content security policy."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_api_is_shown_with_both_its_parts(
    open_page: "Callable[..., Page]", shoot: "Callable[[Page, str], None]"
) -> None:
    page = open_page()
    page.goto("/api/docs")
    page.wait_for_selector(".opblock")
    shown = page.inner_text("#swagger-ui")
    for path in ("/v1/chat/completions", "/v1/models", "/api/tenants/{slug}/keys/", "/api/instances/"):
        assert path in shown.replace("\u200b", ""), path
    shoot(page, "api-docs")
