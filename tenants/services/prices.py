"""The price book, which is only added to, and the one currency that everything is priced in."""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from core.epochs import Section, bump_epoch
from tenants.actor import SYSTEM, Actor
from tenants.models import Installation, Price
from tenants.policies.money import CURRENCIES, MOST_MICROS
from tenants.policies.pricing import PriceTag
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput

FURTHEST: Final = timedelta(days=3660)
NOTICE: Final = timedelta(seconds=10)
"""How long before it begins a price can be withdrawn at the latest: every process has heard of that by then."""

_PRICED: Final = ("input_micros", "cached_input_micros", "output_micros", "request_micros", "gpu_second_micros")


class WrongCurrency(Exception):
    """The installation was begun in another currency; the message says which and what to do."""


@transaction.atomic
def fix_currency(code: str) -> str:
    """The installation's currency: `code` (ISO 4217) at its first start, the same for ever after.

    Amounts are kept without their currency, so that another one would change what every price and bill means.
    Raises InvalidInput for a code that no money has, WrongCurrency when the installation has another one.
    """
    if code not in CURRENCIES:
        raise InvalidInput("GATEHOUSE_CURRENCY", f"{code!r} is no ISO 4217 code of a currency, such as USD.")
    installation, begun = Installation.objects.get_or_create(pk=1, defaults={"currency": code})
    if begun:
        record_audit("installation.begun", subject=installation, actor=SYSTEM, after={"currency": code})
    check_currency(code, installation.currency)
    return installation.currency


def check_currency(code: str, begun_in: str) -> None:
    """Raises WrongCurrency when `code` is not the currency that the installation was begun in."""
    if begun_in != code:
        raise WrongCurrency(
            f"GATEHOUSE_CURRENCY is {code}, but this installation was begun in {begun_in}, and its prices "
            f"and bills are in that. Set GATEHOUSE_CURRENCY={begun_in}, or begin with an empty database."
        )


@transaction.atomic
def set_price(
    model: str,
    tag: PriceTag,
    *,
    actor: Actor,
    version_id: UUID | None = None,
    effective_from: datetime | None = None,
) -> Price:
    """What requests of `model` (or of one of its versions) cost from `effective_from` on, now when it is not said.

    Requests cost what was in effect when they began; what is in the ledger keeps its cost. Raises InvalidInput for a
    price that is negative or above a million of the currency, a moment in the past or beyond ten years; Conflict when
    there is a price from that moment already.
    """
    now = timezone.now()
    if not 0 < len(model) <= 200 or not model.isprintable() or model != model.strip():
        raise InvalidInput("model", "A model's name has 1 to 200 characters.")
    for name in _PRICED:
        if not 0 <= getattr(tag, name) <= MOST_MICROS:
            raise InvalidInput(name.removesuffix("_micros"), "A price lies between 0 and a million of the currency.")
    if effective_from is not None and effective_from < now:
        raise InvalidInput("effective_from", "What was used already keeps its price: give a moment ahead, or none.")
    if effective_from is not None and effective_from > now + FURTHEST:
        raise InvalidInput("effective_from", "A price begins within ten years.")
    price = Price(
        model=model,
        version_id=version_id,
        effective_from=effective_from or now,
        **{name: getattr(tag, name) for name in _PRICED},
    )
    try:
        with transaction.atomic():
            price.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict("There is a price from that moment already.") from error
    record_audit("price.set", subject=price, actor=actor, after=_told(price))
    bump_epoch(Section.PRICES, price.pk)
    return price


@transaction.atomic
def withdraw_price(price_id: UUID, *, actor: Actor) -> None:
    """Take back a price that is not in effect yet. Raises Price.DoesNotExist, Conflict when it is or is about to be."""
    price = Price.objects.select_for_update().get(pk=price_id)
    if price.effective_from <= timezone.now() + NOTICE:
        raise Conflict("The price is or was in effect, and bills name it: set another one instead.")
    record_audit("price.withdrawn", subject=price, actor=actor, before=_told(price))
    bump_epoch(Section.PRICES, price.pk)
    Price.objects.filter(pk=price.pk).delete()


def _told(price: Price) -> dict[str, object]:
    return {
        "model": price.model,
        "version": str(price.version_id) if price.version_id else None,
        "effective_from": price.effective_from.isoformat(),
        **{name: getattr(price, name) for name in _PRICED},
    }
