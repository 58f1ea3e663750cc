"""The Celery application: batch work only, never anything that a request waits for."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("gatehouse")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_serializer="json",
    accept_content=["json"],
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_time_limit=300,
    beat_schedule={
        # Often enough that one which waited for a worker need not be done any more.
        "send-deliveries": {
            "task": "tenants.tasks.send_deliveries",
            "schedule": 10.0,
            "options": {"expires": 10.0},
        },
        "tell-active-budgets": {
            "task": "tenants.tasks.tell_active_budgets",
            "schedule": 60.0,
            "options": {"expires": 60.0},
        },
        "tell-refusing-budgets": {
            "task": "gateway.tasks.tell_refusing_budgets",
            "schedule": 60.0,
            "options": {"expires": 60.0},
        },
        "evaluate-objectives": {
            "task": "gateway.tasks.evaluate_objectives",
            "schedule": 15.0,
            "options": {"expires": 15.0},
        },
        "tell-what-comes": {"task": "tenants.tasks.tell_what_comes", "schedule": 3600.0},
        "tell-forecasts": {"task": "tenants.tasks.tell_forecasts", "schedule": 3600.0, "options": {"expires": 3600.0}},
        "end-what-is-over": {"task": "tenants.tasks.end_what_is_over", "schedule": 60.0, "options": {"expires": 60.0}},
        "prune-deliveries": {"task": "tenants.tasks.prune_deliveries", "schedule": 86_400.0},
        "ensure-partitions": {"task": "tenants.tasks.ensure_partitions", "schedule": 3600.0},
        "compact-lease-store": {"task": "gpupool.tasks.compact_lease_store", "schedule": 600.0},
        "report-instance-hours": {"task": "gpupool.tasks.report_instance_hours", "schedule": 300.0},
        "tend-fine-tuning": {
            "task": "gpupool.tasks.tend_fine_tuning",
            "schedule": 5.0,
            "options": {"expires": 5.0},
        },
        "prune-device-events": {"task": "gpupool.tasks.prune_device_events", "schedule": 86_400.0},
        "prune-traces": {"task": "gpupool.tasks.prune_traces", "schedule": 600.0},
        "sweep-training-files": {"task": "gpupool.tasks.sweep_training_files", "schedule": 86_400.0},
        "prune-minutes": {"task": "tenants.tasks.prune_minutes", "schedule": 86_400.0},
        "prune-configuration-history": {
            "task": "tenants.tasks.prune_configuration_history",
            "schedule": 86_400.0,
        },
        "finish-erasures": {"task": "tenants.tasks.finish_erasures", "schedule": 300.0, "options": {"expires": 300.0}},
        "prune-sessions": {"task": "tenants.tasks.prune_sessions", "schedule": 86_400.0},
        "prune-login-links": {"task": "tenants.tasks.prune_login_links", "schedule": 86_400.0},
        "prune-invitations": {"task": "tenants.tasks.prune_invitations", "schedule": 86_400.0},
        "prune-marks": {"task": "tenants.tasks.prune_marks", "schedule": 86_400.0},
        "delete-expired-responses": {"task": "gateway.tasks.delete_expired_responses", "schedule": 3600.0},
        "delete-expired-conversations": {"task": "gateway.tasks.delete_expired_conversations", "schedule": 3600.0},
        "prune-idempotency-records": {"task": "core.tasks.prune_idempotency_records", "schedule": 3600.0},
        "reconcile-engines": {"task": "gateway.tasks.reconcile_engines", "schedule": 300.0},
        "write-exports": {
            "task": "dashboard.tasks.write_exports",
            "schedule": 5.0,
            "options": {"expires": 5.0},
        },
        "prune-exports": {"task": "dashboard.tasks.prune_exports", "schedule": 3600.0},
        "mark-batch": {"task": "core.tasks.mark_batch", "schedule": 30.0, "options": {"expires": 30.0}},
        "prune-changes": {"task": "core.tasks.prune_changes", "schedule": 600.0},
    },
)
app.autodiscover_tasks()
