"""Some of everything else that lists show: people, limits, requests, webhooks, machines, models, jobs, objectives."""

from datetime import timedelta
from typing import Final
from uuid import uuid4

from django.utils import timezone

from dashboard.models import Export, SavedView
from gateway.models import Objective, ObjectiveAlert, Silence
from gpupool.models import (
    Device,
    DeviceEvent,
    FineTuningJob,
    HealingAction,
    Instance,
    Lease,
    Model,
    ModelAlias,
    ModelVersion,
    Node,
    Reservation,
)
from tenants.models import (
    AccessRequest,
    Delivery,
    Invitation,
    Limit,
    Membership,
    Notice,
    Price,
    RefusalMinute,
    RoleMapping,
    Tenant,
    User,
    Webhook,
)

_GIB: Final = 2**30
_ROLES: Final = ("owner", "admin", "developer", "viewer", "billing")


def fill_rest(tenant: Tenant, number: int, *, of: User, name: str) -> None:
    """`number` of each, called by `name`; a tenant's own are `tenant`'s, exports and saved views are `of`'s."""
    _people(tenant, number, name)
    _wishes(tenant, number, of, name)
    _pool(tenant, number, name)
    _objectives(tenant, number, of, name)
    for table in ("console-tenants", "keys"):
        SavedView.objects.bulk_create(
            SavedView(
                person=of,
                table=table,
                name=f"{name} {n}",
                query="q=x",
                tenant_id=tenant.pk if table == "keys" else None,
            )
            for n in range(number)
        )
    Export.objects.bulk_create(
        Export(
            person=of, tenant_id=tenant.pk, table="keys", path=f"/t/{tenant.slug}/keys/", query=f"q={n}", state="ready"
        )
        for n in range(number)
    )


def _people(tenant: Tenant, number: int, name: str) -> None:
    people = User.objects.bulk_create(
        User(
            email=f"{name}-{n}@crowd.test", display_name=f"{name} {n}", platform_role="read_only" if n % 9 == 0 else ""
        )
        for n in range(number)
    )
    Membership.objects.bulk_create(
        Membership(tenant=tenant, user=one, role=_ROLES[n % 5]) for n, one in enumerate(people)
    )
    later = timezone.now() + timedelta(days=7)
    Invitation.objects.bulk_create(
        Invitation(
            tenant=tenant, email=f"{name}-{n}@new.test", role="viewer", digest=uuid4().hex, expires_at=later,
            invited_by=people[0],
        )
        for n in range(number)
    )  # fmt: skip
    RoleMapping.objects.bulk_create(
        RoleMapping(claim=name, value=str(n), tenant=tenant, tenant_role="viewer") for n in range(number)
    )


def _wishes(tenant: Tenant, number: int, of: User, name: str) -> None:
    now = timezone.now()
    members = list(tenant.memberships.values_list("user_id", flat=True)[:number])
    AccessRequest.objects.bulk_create(
        AccessRequest(
            tenant=tenant, kind="limit", reason="More.", requested_by_id=members[n % len(members)],
            what={"metric": "requests", "window": "day", "amount": n + 1, "model": name, "key": None, "subtree": False},
            state="open" if n % 3 else "declined", decided_by=None if n % 3 else of,
        )
        for n in range(number)
    )  # fmt: skip
    keys = list(tenant.api_keys.all()[:number])
    Limit.objects.bulk_create(
        Limit(
            tenant=tenant, model=f"{name}-{n}", key=keys[n % len(keys)] if n % 2 else None, metric="requests",
            window=("minute", "day", "month")[n % 3], amount=10_000,
        )
        for n in range(number)
    )  # fmt: skip
    Price.objects.bulk_create(
        Price(model=f"{name}-{n}", effective_from=now - timedelta(days=1), input_micros=n) for n in range(number)
    )
    RefusalMinute.objects.bulk_create(
        RefusalMinute(
            tenant_id=tenant.pk, key_id=keys[n % len(keys)].pk, model=f"{name}-{n}", code="rate_limit_exceeded",
            status=429, metric="requests", window="minute", refusals=3,
            minute=now.replace(second=0, microsecond=0) - timedelta(minutes=n % 20),
        )
        for n in range(number)
    )  # fmt: skip
    hooks = Webhook.objects.bulk_create(Webhook(tenant=tenant, url=f"https://{name}-{n}.test/") for n in range(number))
    notices = Notice.objects.bulk_create(
        Notice(tenant=tenant, kind="test", dedupe_key=f"{name}-{n}") for n in range(number)
    )
    Delivery.objects.bulk_create(
        Delivery(notice=one, channel="webhook", webhook=hooks[0], state="delivered") for one in notices
    )


def _pool(tenant: Tenant, number: int, name: str) -> None:
    nodes = Node.objects.bulk_create(
        Node(
            name=f"{name}-{n}", state="unreachable" if n % 4 == 0 else "online", token_digest=uuid4().hex,
            token_last_four="0000", maintenance=n % 5 == 0,
        )
        for n in range(number)
    )  # fmt: skip
    devices = Device.objects.bulk_create(
        Device(
            node=node, stable_id=f"GPU-{name}-{n}", kind="gpu", vendor="nvidia", name="H100", index=0,
            memory_bytes=80 * _GIB, memory_used_bytes=n, health="failed" if n % 4 == 0 else "ok",
            observed_at=timezone.now(),
        )
        for n, node in enumerate(nodes)
    )  # fmt: skip
    models = Model.objects.bulk_create(Model(name=f"{name}-{n}", description=name) for n in range(number))
    ModelAlias.objects.bulk_create(ModelAlias(name=f"{one.name}-latest", model=one) for one in models)
    versions = ModelVersion.objects.bulk_create(
        ModelVersion(model=one, name=f"v{n}", engine="vllm", served_name=one.name, state="serving")
        for n in range(2)
        for one in models
    )
    instances = Instance.objects.bulk_create(
        Instance(
            version=version, node=nodes[n % number], engine="vllm", state="failed" if n % 7 == 0 else "ready",
            tenant_id=tenant.pk if n % 2 else None, host="10.0.0.1", port=n,
        )
        for n, version in enumerate(versions)
    )  # fmt: skip
    Lease.objects.bulk_create(
        Lease(
            device=devices[n % number], holder=f"instance:{one.pk}", tenant_id=one.tenant_id, memory_bytes=_GIB,
            lease_id=n, fencing_token=n,
        )
        for n, one in enumerate(instances)
    )  # fmt: skip
    events = DeviceEvent.objects.bulk_create(
        DeviceEvent(
            node=one.node, device=one, boot_id="b", sequence=n, source="nvml", kind="xid", code=79, at=timezone.now()
        )
        for n, one in enumerate(devices)
    )
    HealingAction.objects.bulk_create(
        HealingAction(
            node=one.node, device=one.device, event=one, action="isolate", reason="XID 79", instance=instances[0]
        )
        for one in events
    )
    Reservation.objects.bulk_create(
        Reservation(tenant_id=tenant.pk, gpu_tag=f"{name}-{n}", devices=1) for n in range(number)
    )
    FineTuningJob.objects.bulk_create(
        FineTuningJob(
            tenant_id=tenant.pk,
            tenant_slug=tenant.slug,
            model=version.model.name,
            version=version,
            training_file_id=uuid4(),
        )
        for version in versions[:number]
    )


def _objectives(tenant: Tenant, number: int, of: User, name: str) -> None:
    now = timezone.now()
    made = Objective.objects.bulk_create(
        Objective(
            name=f"{name} {n}", kind="availability", target=0.99, tenant=tenant if n % 2 else None, tallied_at=now
        )
        for n in range(number)
    )
    ObjectiveAlert.objects.bulk_create(
        ObjectiveAlert(
            objective=one, pair="1h5m", severity="page", state="acknowledged", long_burn=20, short_burn=20,
            acknowledged_by=of,
        )
        for one in made
    )  # fmt: skip
    Silence.objects.bulk_create(
        Silence(objective=one, tenant=one.tenant, reason="Quiet.", ends_at=now + timedelta(hours=1), created_by=of)
        for one in made
    )
