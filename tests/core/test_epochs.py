"""Epochs: a write and the news of it are one transaction."""

import threading
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.utils import timezone

from core.epochs import Section, bump_epoch, current_epoch, prune_changes, read_changes, read_epochs
from core.ids import uuid7
from core.models import Change


def _bump(section: Section, object_id: UUID) -> int:
    with transaction.atomic():
        return bump_epoch(section, object_id)


@pytest.mark.django_db(transaction=True)
def test_bump_outside_a_transaction_is_refused() -> None:
    with pytest.raises(RuntimeError, match="outside a transaction"):
        bump_epoch(Section.KEYS, uuid7())


@pytest.mark.django_db
def test_epochs_count_up_within_a_section_alone() -> None:
    first, second, other = uuid7(), uuid7(), uuid7()
    before = current_epoch(Section.KEYS)
    assert _bump(Section.KEYS, first) == before + 1
    assert _bump(Section.KEYS, second) == before + 2
    epoch = _bump(Section.GRANTS, other)
    assert read_epochs()[Section.KEYS] == before + 2
    assert read_epochs()[Section.GRANTS] == epoch
    changes = read_changes(Section.KEYS, after=before, limit=10)
    assert changes is not None
    assert [change.object_id for change in changes] == [first, second]


@pytest.mark.django_db
def test_changes_come_in_pages() -> None:
    before = current_epoch(Section.MODELS)
    ids = [uuid7() for _ in range(5)]
    for object_id in ids:
        _bump(Section.MODELS, object_id)
    page = read_changes(Section.MODELS, after=before, limit=3)
    assert page is not None
    rest = read_changes(Section.MODELS, after=page[-1].epoch, limit=3)
    assert rest is not None
    assert [change.object_id for change in [*page, *rest]] == ids


@pytest.mark.django_db
def test_rolled_back_write_leaves_no_news() -> None:
    before = current_epoch(Section.KEYS)
    with transaction.atomic():
        bump_epoch(Section.KEYS, uuid7())
        transaction.set_rollback(True)
    assert current_epoch(Section.KEYS) == before
    assert read_changes(Section.KEYS, after=before, limit=10) == []


@pytest.mark.django_db
def test_reader_behind_pruned_changes_is_told_to_reload() -> None:
    before = current_epoch(Section.LIMITS)
    pruned = _bump(Section.LIMITS, uuid7())
    Change.objects.filter(section=Section.LIMITS).update(at=timezone.now() - timedelta(hours=2))
    kept_id = uuid7()
    _bump(Section.LIMITS, kept_id)
    assert prune_changes() >= 1
    assert prune_changes() == 0
    assert read_changes(Section.LIMITS, after=before, limit=10) is None
    changes = read_changes(Section.LIMITS, after=pruned, limit=10)
    assert changes is not None
    assert [change.object_id for change in changes] == [kept_id]


@pytest.mark.django_db(transaction=True)
def test_epochs_become_visible_in_order_of_commit() -> None:
    """A second writer waits for the first: nobody can see epoch n+1 and miss n."""
    before = current_epoch(Section.KEYS)
    first_id, second_id = uuid7(), uuid7()
    bumped, done = threading.Event(), threading.Event()

    def second() -> None:
        bumped.wait(30)
        _bump(Section.KEYS, second_id)
        connection.close()
        done.set()

    thread = threading.Thread(target=second)
    thread.start()
    with transaction.atomic():
        bump_epoch(Section.KEYS, first_id)
        bumped.set()
        assert not done.wait(0.2)
    assert done.wait(30)
    thread.join()
    changes = read_changes(Section.KEYS, after=before, limit=10)
    assert changes is not None
    assert [change.object_id for change in changes] == [first_id, second_id]
