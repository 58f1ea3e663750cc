"""Doors of pages: what they answer where the database says no, or somebody else was quicker."""

from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from psycopg.errors import LockNotAvailable

from dashboard.views.console import quotas
from tenants.models import Limit
from tests.dashboard.people import tenant
from tests.dashboard.tenancy_rows import limit

pytestmark = pytest.mark.django_db


def test_what_another_operator_deleted_meanwhile_is_not_there(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    one = limit(tenant("acme"))
    found = quotas._limit

    def looked(*args: Any) -> Limit:
        row = found(*args)
        Limit.objects.all().delete()
        return row

    monkeypatch.setattr(quotas, "_limit", looked)
    assert root.post(f"/console/quotas/{one.pk}/delete/").status_code == 404


def test_a_read_that_misses_a_row_stays_an_error_of_ours(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_args: object, **_more: object) -> None:
        raise Limit.DoesNotExist

    monkeypatch.setattr("dashboard.views.console.keys.find_keys", missing)
    with pytest.raises(Limit.DoesNotExist):
        root.get("/console/keys/")


def test_a_page_that_waits_too_long_for_a_lock_says_so(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_args: object, **_more: object) -> None:
        raise OperationalError from LockNotAvailable("canceling statement due to lock timeout")

    monkeypatch.setattr("dashboard.views.console.keys.find_keys", locked)
    told = root.get("/console/keys/")
    assert told.status_code == 503
    assert "This took the database too long" in told.content.decode()
