"""Holds every start to the currency that the installation was begun in."""

from django.core.management.base import CommandError
from django.db import OperationalError, ProgrammingError

from config.environment import Environment
from core.refusals import InvalidInput
from tenants.services.prices import WrongCurrency, fix_currency


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
