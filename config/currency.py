"""Holds every start to the currency that the installation was begun in."""

import threading
from typing import Final

from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, OperationalError, ProgrammingError, connection

from config.environment import Environment
from core.refusals import InvalidInput
from tenants.models import Installation
from tenants.services.prices import WrongCurrency, check_currency, fix_currency

_READ_SECONDS: Final = 2.0


def settle_currency(environment: Environment) -> None:
    """Fix the currency at the first start; refuse any later one with another. Raises CommandError saying so.

    A database that is away or not migrated yet refuses nothing: what needs it says so itself.
    """
    try:
        fix_currency(environment.currency)
    except (WrongCurrency, InvalidInput) as error:
        raise CommandError(str(error)) from error
    except (OperationalError, ProgrammingError):
        return


def compare_currency(environment: Environment, *, seconds: float = _READ_SECONDS) -> None:
    """Refuse a start with another currency than the installation's, writing nothing. Raises CommandError.

    For what starts without a database, too: one that does not answer within `seconds`, by whatever it is held up,
    refuses nothing.
    """
    found: list[str] = []

    def read() -> None:
        try:
            found.extend(Installation.objects.values_list("currency", flat=True))
        except (DatabaseError, InterfaceError):
            return
        finally:
            connection.close()

    reader = threading.Thread(target=read, name="currency", daemon=True)
    reader.start()
    reader.join(seconds)
    for currency in found:
        try:
            check_currency(environment.currency, currency)
        except WrongCurrency as error:
            raise CommandError(str(error)) from error
