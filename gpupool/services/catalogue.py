"""Models and their versions: made and described. What brings a version to serve is in gpupool.services.admission."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final
from uuid import UUID

from django.db import transaction

from core.epochs import Section
from core.refusals import Conflict
from gpupool.admission_settings import admission_settings
from gpupool.models import Instance, Model, ModelVersion, VersionState
from gpupool.policies import admission, version_needs
from gpupool.policies.manifest import digest, read_manifest
from gpupool.policies.version_needs import VersionNeeds
from gpupool.services.changes import Changes
from gpupool.services.names import take_name
from gpupool.services.version_checks import (
    check_card,
    check_launch,
    check_manifest,
    check_replicas,
    check_shape,
    check_tenant,
)
from gpupool.services.version_memory import fill_memory
from tenants.actor import Actor
from tenants.models import Tenant
from tenants.services import InvalidInput, record_audit

DEVICE_KINDS: Final = ("cpu", "gpu")
_NEEDS: Final = tuple(asdict(VersionNeeds()))
_OWN: Final = (
    "served_name", "artefact_uri", "engine_args", "memory_bytes", "device_kind", "manifest", "card", "tenant_id",
)  # fmt: skip


@transaction.atomic
def create_model(
    name: str, *, actor: Actor, description: str = "", tenant_id: UUID | None = None, changes: Changes | None = None
) -> Model:
    """A new name at the door; `tenant_id` makes it private to that tenant.

    A service that does more in the same transaction passes `changes` and publishes them itself, at its end.
    Raises InvalidInput for an empty, overlong or taken name, or a tenant that does not exist.
    """
    name = take_name(name)
    if tenant_id is not None and not Tenant.objects.filter(pk=tenant_id).exists():
        raise InvalidInput("tenant_id", "There is no such tenant.")
    model = Model.objects.create(name=name, description=description, tenant_id=tenant_id)
    record_audit("model.created", subject=model, actor=actor, tenant_id=tenant_id, after={"name": name})
    publish_model(model, changes=changes)
    return model


@transaction.atomic
def create_version(
    model: Model,
    *,
    name: str,
    engine: str,
    actor: Actor,
    served_name: str = "",
    artefact_uri: str = "",
    engine_args: Mapping[str, str | int | float | bool] | None = None,
    memory_bytes: int = 0,
    device_kind: str = "gpu",
    replicas: int = 0,
    tenant_id: UUID | None = None,
    manifest: Mapping[str, Any] | None = None,
    needs: VersionNeeds | None = None,
    state: VersionState | None = None,
    changes: Changes | None = None,
) -> ModelVersion:
    """A version of `model`; `memory_bytes` is what one instance claims on each of its devices, 0: as it is estimated.

    Without `artefact_uri` it only takes attached engines. `served_name` is the model's name where empty; `tenant_id`
    makes it one tenant's own version of a model that others share. `state` None: it serves at once, or is a draft
    where this installation admits versions first. `changes` as for `create_model`.
    Raises InvalidInput for a taken name, an unknown engine, arguments the engine does not know, an artefact whose
    claim nobody says and nobody can estimate, needs that make no sense, or replicas that nothing can launch.
    """
    Model.objects.select_for_update().filter(pk=model.pk).first()  # two versions of one name: one after the other
    name, needs = name.strip(), needs or VersionNeeds()
    if not 0 < len(name) <= 80:
        raise InvalidInput("name", "A version needs a name of 1 to 80 characters.")
    version = ModelVersion(
        model=model,
        name=name,
        engine=engine,
        artefact_uri=artefact_uri,
        served_name=served_name or model.name,
        engine_args=dict(engine_args or {}),
        memory_bytes=memory_bytes,
        device_kind=device_kind,
        replicas=replicas,
        tenant_id=tenant_id,
        manifest=check_manifest(manifest),
        **asdict(needs),
    )
    rule = admission_settings().rule
    version.state = state or VersionState(admission.first_stage(rule, has_artefact=bool(artefact_uri)))
    _check(version)
    check_replicas(replicas, launchable=bool(artefact_uri))
    if ModelVersion.objects.filter(model=model, name=name).exists():
        raise InvalidInput("name", f"{model.name} has a version {name!r} already.")
    version.save(force_insert=True)
    record_audit(
        "model_version.created",
        subject=version,
        actor=actor,
        tenant_id=version.owner_id,
        after={
            "model": model.name,
            "name": name,
            "engine": engine,
            "artefact": artefact_uri,
            "replicas": replicas,
            "state": version.state,
        },
    )
    publish_model(model, changes=changes)
    return version


@transaction.atomic
def change_version(version_id: UUID, *, actor: Actor, **values: Any) -> ModelVersion:
    """Describe a draft otherwise: fields of `create_version` and of VersionNeeds, by their names.

    Raises ModelVersion.DoesNotExist, Conflict for one that is no draft, and InvalidInput as `create_version` does.
    """
    version = lock_version(version_id)
    if version.state != VersionState.DRAFT:
        raise Conflict(f"The version is {version.state}: only a draft can be changed. Make a new version.")
    if unknown := sorted(values.keys() - {*_OWN, *_NEEDS}):
        raise InvalidInput(unknown[0], "This cannot be changed.")
    if "manifest" in values:
        values["manifest"] = check_manifest(values["manifest"])
    if "card" in values:
        values["card"] = check_card(values["card"])
    watched = sorted({*values, "memory_bytes", "host_memory_bytes"})  # an estimate may fill these two
    before = {name: getattr(version, name) for name in watched}
    for name, value in values.items():
        setattr(version, name, value)
    version.served_name = version.served_name or version.model.name
    _check(version)
    check_replicas(version.replicas, launchable=bool(version.artefact_uri))
    changed = [name for name in watched if before[name] != getattr(version, name)]
    if changed:
        version.save(update_fields=[*changed, "served_name"])
        record_audit(
            "model_version.changed",
            subject=version,
            actor=actor,
            tenant_id=version.owner_id,
            before={name: _told(name, before[name]) for name in changed},
            after={name: _told(name, getattr(version, name)) for name in changed},
        )
        publish_model(version.model)
    return version


@transaction.atomic
def set_replicas(version_id: UUID, replicas: int, *, actor: Actor) -> ModelVersion:
    """How many instances the controller keeps. Raises ModelVersion.DoesNotExist, InvalidInput."""
    version = lock_version(version_id)
    check_replicas(replicas, launchable=bool(version.artefact_uri))
    if version.replicas != replicas:
        before, version.replicas = version.replicas, replicas
        version.save(update_fields=["replicas"])
        record_audit(
            "model_version.replicas_set",
            subject=version,
            actor=actor,
            tenant_id=version.owner_id,
            before={"replicas": before},
            after={"replicas": replicas},
        )
        publish_model(version.model)
    return version


def needs_of(version: ModelVersion) -> VersionNeeds:
    """What one instance of it needs, beside its memory."""
    return replace(VersionNeeds(), **{name: getattr(version, name) for name in _NEEDS})


def lock_version(version_id: UUID) -> ModelVersion:
    """With its model. Raises ModelVersion.DoesNotExist."""
    return ModelVersion.objects.select_for_update(of=("self",), no_key=True).select_related("model").get(pk=version_id)


def publish_model(model: Model, *instances: Instance, changes: Changes | None = None) -> None:
    """Tell doors and controller; `changes` of a service that does more in the same transaction."""
    collected = Changes() if changes is None else changes
    collected.add(Section.MODELS, model.pk)
    for instance in instances:
        collected.add(Section.ENDPOINTS, instance.pk)
    collected.add(Section.POOL, model.pk)
    if changes is None:
        collected.publish()


def _check(version: ModelVersion) -> None:
    if version.device_kind not in DEVICE_KINDS:
        raise InvalidInput("device_kind", f"A device is one of {', '.join(DEVICE_KINDS)}.")
    check_shape(version)
    check_launch(version.engine, artefact_uri=version.artefact_uri, arguments=version.engine_args)
    check_tenant(version)
    found = version_needs.fault(needs_of(version), device_kind=version.device_kind)
    if found is not None:
        raise InvalidInput(*found)
    fill_memory(version)


def _told(name: str, value: Any) -> Any:
    """As the audit log keeps it: of a manifest, which may name thousands of files, what it comes to."""
    if name == "manifest" and value:
        manifest = read_manifest(value)
        return {"sha256": digest(manifest), "files": len(manifest.files), "bytes": manifest.total_bytes}
    return str(value) if isinstance(value, UUID) else value
