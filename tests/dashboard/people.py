"""People, tenants and a small pool for the tests of pages."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from gpupool.models import Device, Instance, Lease, Model, ModelVersion, Node
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import (
    PlatformMinute,
    Tenant,
    TenantDay,
    TenantHour,
    TenantRole,
    UsageDay,
    UsageHour,
    UsageMinute,
    User,
)

PASSWORD = "correct-horse-battery"


def person(name: str, *, platform_role: str = "") -> User:
    """Someone who can log in with PASSWORD as NAME@example.com."""
    return services.create_user(
        email=f"{name}@example.com",
        password=PASSWORD,
        display_name=name.title(),
        platform_role=platform_role,
        actor=SYSTEM,
    )


def tenant(slug: str, **members: TenantRole) -> Tenant:
    """A tenant with members called by name: tenant("a", ada=OWNER) makes the person ada too."""
    made = services.create_tenant(slug=slug, name=slug.title(), time_zone="Asia/Shanghai", actor=SYSTEM)
    services.grant_model(made, model_pattern="*", actor=SYSTEM)
    for name, role in members.items():
        user = User.objects.filter(email=f"{name}@example.com").first() or person(name)
        services.add_member(made, user, role=role, actor=SYSTEM)
    return made


@dataclass(frozen=True, slots=True)
class Pool:
    device: Device
    version: ModelVersion
    instance: Instance


def pool(*, now: datetime | None = None, state: str = "ready") -> Pool:
    """A node with one GPU of 80 GiB, 24 of them claimed by one instance, 20 used."""
    gib = 2**30
    node = Node.objects.create(name="node-1", state="online", token_digest="d" * 64, token_last_four="dddd")
    device = Device.objects.create(
        node=node,
        stable_id="GPU-1",
        kind="gpu",
        vendor="nvidia",
        name="NVIDIA H100",
        index=0,
        memory_bytes=80 * gib,
        memory_used_bytes=20 * gib,
        utilization=0.5,
        health="ok",
        observed_at=now or timezone.now(),
    )
    model = Model.objects.create(name="qwen3-8b")
    version = ModelVersion.objects.create(
        model=model, name="v1", engine="vllm", served_name="qwen3", artefact_uri="file:///models/q", state="serving"
    )
    instance = Instance.objects.create(
        version=version, node=node, engine="vllm", state=state, host="10.0.0.1", port=21000, running_requests=2
    )
    Lease.objects.create(
        device=device, holder=f"instance:{instance.pk}", memory_bytes=24 * gib, lease_id=1, fencing_token=1
    )
    return Pool(device, version, instance)


def usage(
    owner: Tenant, *, at: datetime, model: str = "qwen3-8b", requests: int = 10, tokens: int = 1000
) -> UsageMinute:
    """One minute of usage by one key of the tenant: `tokens` in and as many out."""
    key = services.create_api_key(owner, name=f"key-{model}", actor=SYSTEM).key
    ended, _ = PlatformMinute.objects.get_or_create(minute=at.replace(second=0, microsecond=0))
    ended.requests, ended.failures, ended.tokens = (
        ended.requests + requests,
        ended.failures + 1,
        ended.tokens + 2 * tokens,
    )
    ended.save()
    sums = {
        "tenant_id": owner.pk,
        "key_id": key.pk,
        "model": model,
        "requests": requests,
        "failures": 1,
        "input_tokens": tokens,
        "cached_tokens": tokens // 4,
        "output_tokens": tokens,
        "ttft_ms": 300.0 * requests,
        "ttft_count": requests,
    }
    minute = at.astimezone(UTC).replace(second=0, microsecond=0)
    UsageHour.objects.create(hour=minute.replace(minute=0), **sums)
    UsageDay.objects.create(day=minute.replace(hour=0, minute=0), **sums)
    hour, day = minute.replace(minute=0), minute.replace(hour=0, minute=0)
    of_hour, _ = TenantHour.objects.get_or_create(tenant_id=owner.pk, model=model, hour=hour)
    of_day, _ = TenantDay.objects.get_or_create(tenant_id=owner.pk, model=model, day=day)
    for whole in (of_hour, of_day):  # other keys' use is in them
        for name, value in sums.items():
            if name not in ("tenant_id", "key_id", "model"):
                setattr(whole, name, getattr(whole, name) + value)
        whole.save()
    return UsageMinute.objects.create(minute=minute, **sums)


def minutes_ago(minutes: int) -> datetime:
    return timezone.now() - timedelta(minutes=minutes)
