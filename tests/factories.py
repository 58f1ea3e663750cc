"""Rows for tests, made through the services that make them in earnest. Every name is unique within a test."""

from collections.abc import Sequence
from itertools import count
from typing import Any
from uuid import UUID

from core.ids import uuid7
from gpupool.models import Adapter, FineTuningJob, Instance, InstanceState, Model, ModelVersion, Node
from gpupool.services.adapters import register_adapter
from gpupool.services.catalogue import create_model, create_version
from gpupool.services.nodes import create_node
from tenants.actor import SYSTEM
from tenants.models import PlatformRole, Tenant, TenantRole, User
from tenants.services import NewKey, add_member, create_api_key, create_tenant, create_user, grant_model

_numbers = count(1)
PASSWORD = "correct-horse-battery"


def make_tenant(slug: str | None = None) -> Tenant:
    slug = slug or f"tenant-{next(_numbers)}"
    return create_tenant(slug=slug, name=slug.title(), actor=SYSTEM)


def make_user(*, email: str | None = None, platform_role: str = PlatformRole.NONE) -> User:
    """A person with PASSWORD."""
    email = email or f"user-{next(_numbers)}@example.test"
    return create_user(email=email, password=PASSWORD, actor=SYSTEM, platform_role=platform_role)


def make_member(tenant: Tenant, *, role: TenantRole = TenantRole.DEVELOPER) -> User:
    user = make_user()
    add_member(tenant, user, role=role, actor=SYSTEM)
    return user


def make_key(tenant: Tenant, *, rpm_limit: int | None = None, models: Sequence[str] = ()) -> NewKey:
    return create_api_key(
        tenant, name=f"key-{next(_numbers)}", actor=SYSTEM, rpm_limit=rpm_limit, allowed_models=models
    )


def make_model(name: str | None = None, *, granted_to: Sequence[Tenant] = (), tenant_id: UUID | None = None) -> Model:
    """A model of the catalogue, granted to the tenants."""
    model = create_model(name or f"model-{next(_numbers)}", actor=SYSTEM, tenant_id=tenant_id)
    for tenant in granted_to:
        grant_model(tenant, model_pattern=model.name, actor=SYSTEM)
    return model


def make_version(model: Model, *, engine: str = "vllm") -> ModelVersion:
    """A version that takes attached engines."""
    return create_version(model, name=f"v{next(_numbers)}", engine=engine, actor=SYSTEM)


def make_fine_tuning_job(tenant: Tenant, version: ModelVersion, **more: Any) -> FineTuningJob:
    """A job that waits, of a file that is not there; written directly."""
    given = {"model": version.model.name, "training_file_id": uuid7(), **more}
    return FineTuningJob.objects.create(tenant_id=tenant.pk, tenant_slug=tenant.slug, version=version, **given)


def make_adapter(version: ModelVersion, **more: Any) -> Adapter:
    """An adapter that an operator brought, of rank 8."""
    given: dict[str, Any] = {
        "name": f"adapter-{next(_numbers)}",
        "artefact_uri": "file:///models/adapter",
        "sha256": "0" * 64,
        "size_bytes": 1,
        "rank": 8,
    }
    return register_adapter(version.pk, actor=SYSTEM, **(given | more))


def make_node(name: str | None = None) -> Node:
    return create_node(name or f"node-{next(_numbers)}", actor=SYSTEM).node


def make_instance(
    version: ModelVersion, *, port: int, state: InstanceState = InstanceState.READY, host: str = "127.0.0.1"
) -> Instance:
    """An attached instance as the controller would have left it; written directly, past its state machine."""
    return Instance.objects.create(
        version=version, attached=True, engine=version.engine, state=state, host=host, port=port
    )
