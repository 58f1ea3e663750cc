"""Celery's schedule: every entry names a task that is there, and a task may run twice."""

import pytest

from config.celery import app
from core.tasks import prune_changes
from gateway.tasks import delete_expired_responses, tell_refusing_budgets
from tenants.tasks import (
    end_what_is_over,
    ensure_partitions,
    prune_deliveries,
    prune_invitations,
    prune_login_links,
    prune_marks,
    send_deliveries,
    tell_active_budgets,
    tell_forecasts,
    tell_what_comes,
)


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
    for task in (
        send_deliveries,
        prune_deliveries,
        prune_invitations,
        prune_login_links,
        tell_active_budgets,
        tell_refusing_budgets,
        tell_forecasts,
        tell_what_comes,
        end_what_is_over,
    ):
        assert (task(), task()) == (0, 0)


def test_forecasts_of_ten_thousand_tenants_keep_no_warning_back() -> None:
    """They take minutes; what ends soon is another task, and the usual bound of a task is not theirs."""
    assert tell_forecasts.time_limit > 10 * app.conf.task_time_limit
