"""Periodic work of this app."""

from celery import shared_task
from django.utils import timezone

from gpupool import services
from gpupool.services import healing, showback, traces, training_files, training_runs
from gpupool.training.settings import training_folders, training_settings


@shared_task
def compact_lease_store() -> int:
    """Drop old events of the lease store; safe to run twice."""
    return services.compact_store_events(now=timezone.now())


@shared_task(name="gpupool.tasks.prune_device_events")
def prune_device_events() -> int:
    """Delete old events of devices; returns how many. Safe to run twice."""
    return healing.prune_events(now=timezone.now())


@shared_task(name="gpupool.tasks.prune_traces")
def prune_traces() -> int:
    """Delete old steps of instances and logs that nobody reads; returns how many. Safe to run twice."""
    return traces.prune_traces(now=timezone.now())


@shared_task(name="gpupool.tasks.report_instance_hours")
def report_instance_hours() -> int:
    """Share the pool's time out to tenants, hour by hour; returns how many shares there are."""
    return showback.report_instance_hours(now=timezone.now())


@shared_task(name="gpupool.tasks.tend_fine_tuning")
def tend_fine_tuning() -> int:
    """Start fine-tuning jobs and look after those that run; returns how many. Safe to run twice, and at once."""
    return training_runs.tend_jobs(training_settings(), now=timezone.now())


@shared_task(name="gpupool.tasks.sweep_training_files")
def sweep_training_files() -> int:
    """Delete what uploads left that were broken off; returns how many files. Safe to run twice."""
    return training_files.sweep_training_files(folders=training_folders(), now=timezone.now())
