"""The currency is fixed at the first start; a start with another one is refused in words."""

from dataclasses import replace

import pytest
from django.conf import settings
from django.core.management.base import CommandError
from django.db import connection, transaction

from config.currency import compare_currency, settle_currency
from tenants.models import Installation

pytestmark = pytest.mark.django_db


def test_the_first_start_fixes_it_and_another_one_is_refused() -> None:
    settle_currency(replace(settings.GATEHOUSE, currency="EUR"))
    settle_currency(replace(settings.GATEHOUSE, currency="EUR"))
    with pytest.raises(CommandError, match="begun in EUR"):
        settle_currency(replace(settings.GATEHOUSE, currency="USD"))
    assert Installation.objects.get().currency == "EUR"


@pytest.mark.parametrize("code", ["", "usd", "DOGE", "XXX", "US"])
def test_what_is_no_currency_is_refused(code: str) -> None:
    with pytest.raises(CommandError, match="ISO 4217"):
        settle_currency(replace(settings.GATEHOUSE, currency=code))
    assert not Installation.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_what_only_reads_is_held_to_it_and_fixes_nothing() -> None:
    compare_currency(replace(settings.GATEHOUSE, currency="USD"))
    assert not Installation.objects.exists()
    settle_currency(replace(settings.GATEHOUSE, currency="EUR"))
    compare_currency(replace(settings.GATEHOUSE, currency="EUR"))
    with pytest.raises(CommandError, match="begun in EUR"):
        compare_currency(replace(settings.GATEHOUSE, currency="USD"))


@pytest.mark.django_db(transaction=True)
def test_a_database_that_does_not_answer_refuses_no_start_that_only_reads() -> None:
    settle_currency(replace(settings.GATEHOUSE, currency="EUR"))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE tenants_installation")
        compare_currency(replace(settings.GATEHOUSE, currency="USD"), seconds=0.1)
