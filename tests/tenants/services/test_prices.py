"""The price book is only added to: published, audited, never about the past."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import InternalError, ProgrammingError, transaction
from django.utils import timezone

from core.epochs import Section, current_epoch, read_changes
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Price
from tenants.policies.money import MOST_MICROS
from tenants.policies.pricing import PriceTag
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.prices import NOTICE, set_price, withdraw_price

pytestmark = pytest.mark.django_db

TAG = PriceTag(150_000, 75_000, 600_000, 1, 700)


def test_a_price_is_kept_audited_and_published() -> None:
    version = uuid4()
    price = set_price("qwen", TAG, version_id=version, actor=SYSTEM)
    assert abs(price.effective_from - timezone.now()) < timedelta(seconds=30)
    assert [change.object_id for change in read_changes(Section.PRICES, after=0, limit=9) or ()] == [price.pk]
    told = AuditEvent.objects.get(action="price.set").after
    assert (told["model"], told["version"], told["input_micros"]) == ("qwen", str(version), 150_000)


@pytest.mark.parametrize(
    ("tag", "field"),
    [
        (PriceTag(input_micros=-1), "input"),
        (PriceTag(cached_input_micros=MOST_MICROS + 1), "cached_input"),
        (PriceTag(output_micros=2**63), "output"),
        (PriceTag(request_micros=-5), "request"),
        (PriceTag(gpu_second_micros=-5), "gpu_second"),
    ],
)
def test_absurd_prices_are_refused(tag: PriceTag, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        set_price("qwen", tag, actor=SYSTEM)
    assert refused.value.field == field
    assert current_epoch(Section.PRICES) == 0


@pytest.mark.parametrize("model", ["", " qwen", "q\x00", "q" * 201])
def test_a_price_names_a_model(model: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        set_price(model, TAG, actor=SYSTEM)
    assert refused.value.field == "model"


def test_what_was_used_keeps_its_price() -> None:
    now = timezone.now()
    for moment in (now - timedelta(seconds=1), now + timedelta(days=4000)):
        with pytest.raises(InvalidInput) as refused:
            set_price("qwen", TAG, effective_from=moment, actor=SYSTEM)
        assert refused.value.field == "effective_from"


def test_one_moment_has_one_price_of_a_model_or_version() -> None:
    ahead = timezone.now() + timedelta(days=1)
    set_price("qwen", TAG, effective_from=ahead, actor=SYSTEM)
    set_price("qwen", TAG, effective_from=ahead, version_id=uuid4(), actor=SYSTEM)
    with pytest.raises(Conflict):
        set_price("qwen", TAG, effective_from=ahead, actor=SYSTEM)


def test_only_what_is_well_ahead_is_withdrawn() -> None:
    ahead = set_price("qwen", TAG, effective_from=timezone.now() + timedelta(days=1), actor=SYSTEM)
    soon = set_price("qwen", TAG, effective_from=timezone.now() + NOTICE * 0.9, actor=SYSTEM)
    withdraw_price(ahead.pk, actor=SYSTEM)
    assert AuditEvent.objects.get(action="price.withdrawn").before["model"] == "qwen"
    assert (read_changes(Section.PRICES, after=2, limit=9) or ())[0].object_id == ahead.pk
    with pytest.raises(Conflict):
        withdraw_price(soon.pk, actor=SYSTEM)


def test_an_entry_of_the_book_is_not_written_over() -> None:
    price = set_price("qwen", TAG, actor=SYSTEM)
    with pytest.raises((InternalError, ProgrammingError)), transaction.atomic():
        Price.objects.filter(pk=price.pk).update(input_micros=1)
