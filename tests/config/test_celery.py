"""Celery's schedule: every entry names a task that is there, and a task may run twice."""

import pytest

from config.celery import app
from core.tasks import prune_changes
from gateway.tasks import delete_expired_responses
from tenants.tasks import ensure_partitions, prune_marks


def test_every_scheduled_task_is_registered() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert scheduled
    assert scheduled <= set(app.tasks)


@pytest.mark.django_db
def test_tasks_may_run_twice() -> None:
    ensure_partitions()
    assert ensure_partitions() == []
    assert prune_marks() == 0
    delete_expired_responses()
    assert delete_expired_responses() == 0
    prune_changes()
    assert prune_changes() == 0
