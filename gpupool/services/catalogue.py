"""Models and their versions."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from django.db import IntegrityError, transaction

from core.epochs import Section
from gpupool.engines.base import EngineArgumentsRefused
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.models import Instance, Model, ModelVersion, VersionState
from gpupool.services.changes import Changes
from tenants.actor import Actor
from tenants.models import Tenant
from tenants.services import InvalidInput, record_audit

DEVICE_KINDS: Final = ("cpu", "gpu")
MAX_REPLICAS: Final = 1000
_PATTERN_CHARACTERS: Final = frozenset("*?[]")  # mean something in grants


@transaction.atomic
def create_model(
    name: str, *, actor: Actor, description: str = "", tenant_id: UUID | None = None, changes: Changes | None = None
) -> Model:
    """A new name at the door; `tenant_id` makes it private to that tenant.

    A service that does more in the same transaction passes `changes` and publishes them itself, at its end.
    Raises InvalidInput for an empty, overlong or taken name, or a tenant that does not exist.
    """
    name = name.strip()
    if not 0 < len(name) <= 200 or not name.isprintable() or set(name) & _PATTERN_CHARACTERS:
        raise InvalidInput("name", "A model needs a name of 1 to 200 printable characters, without * ? [ ].")
    if Model.objects.filter(name=name).exists():
        raise InvalidInput("name", f"There is a model {name!r} already.")
    if tenant_id is not None and not Tenant.objects.filter(pk=tenant_id).exists():
        raise InvalidInput("tenant_id", "There is no such tenant.")
    try:
        with transaction.atomic():
            model = Model.objects.create(name=name, description=description, tenant_id=tenant_id)
    except IntegrityError as error:  # made by another at this moment
        raise InvalidInput("name", f"There is a model {name!r} already.") from error
    record_audit("model.created", subject=model, actor=actor, tenant_id=tenant_id, after={"name": name})
    _publish(model, changes=changes)
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
    state: VersionState = VersionState.SERVING,
    changes: Changes | None = None,
) -> ModelVersion:
    """A version of `model`; `memory_bytes` is what one instance claims on its device.

    Without `artefact_uri` it only takes attached engines. `served_name` is the model's name where empty.
    `changes` as for `create_model`.
    Raises InvalidInput for a taken name, an unknown engine, arguments the engine does not know, an
    artefact without a size to claim, or replicas that nothing can launch.
    """
    Model.objects.select_for_update().filter(pk=model.pk).first()  # two versions of one name: one after the other
    name, served_name = name.strip(), served_name or model.name
    if not 0 < len(name) <= 80:
        raise InvalidInput("name", "A version needs a name of 1 to 80 characters.")
    if len(served_name) > 200:
        raise InvalidInput("served_name", "The name that the engine knows has at most 200 characters.")
    if device_kind not in DEVICE_KINDS:
        raise InvalidInput("device_kind", f"A device is one of {', '.join(DEVICE_KINDS)}.")
    arguments = dict(engine_args or {})
    _check_launch(engine, artefact_uri=artefact_uri, arguments=arguments, memory_bytes=memory_bytes)
    _check_replicas(replicas, launchable=bool(artefact_uri))
    if ModelVersion.objects.filter(model=model, name=name).exists():
        raise InvalidInput("name", f"{model.name} has a version {name!r} already.")
    version = ModelVersion.objects.create(
        model=model,
        name=name,
        engine=engine,
        artefact_uri=artefact_uri,
        served_name=served_name,
        engine_args=arguments,
        memory_bytes=memory_bytes,
        device_kind=device_kind,
        replicas=replicas,
        state=state,
    )
    record_audit(
        "model_version.created",
        subject=version,
        actor=actor,
        tenant_id=model.tenant_id,
        after={"model": model.name, "name": name, "engine": engine, "artefact": artefact_uri, "replicas": replicas},
    )
    _publish(model, changes=changes)
    return version


@transaction.atomic
def set_replicas(version_id: UUID, replicas: int, *, actor: Actor) -> ModelVersion:
    """How many instances the controller keeps. Raises ModelVersion.DoesNotExist, InvalidInput."""
    version = ModelVersion.objects.select_for_update(of=("self",)).select_related("model").get(pk=version_id)
    _check_replicas(replicas, launchable=bool(version.artefact_uri))
    if version.replicas != replicas:
        before, version.replicas = version.replicas, replicas
        version.save(update_fields=["replicas"])
        record_audit(
            "model_version.replicas_set",
            subject=version,
            actor=actor,
            tenant_id=version.model.tenant_id,
            before={"replicas": before},
            after={"replicas": replicas},
        )
        _publish(version.model)
    return version


@transaction.atomic
def retire_version(version_id: UUID, *, actor: Actor) -> ModelVersion:
    """No more requests and no more replicas; the controller drains its instances. Raises ModelVersion.DoesNotExist."""
    return _set_state(version_id, VersionState.RETIRED, actor=actor)


@transaction.atomic
def serve_version(version_id: UUID, *, actor: Actor) -> ModelVersion:
    """Serve (again). Raises ModelVersion.DoesNotExist."""
    return _set_state(version_id, VersionState.SERVING, actor=actor)


def _set_state(version_id: UUID, state: VersionState, *, actor: Actor) -> ModelVersion:
    version = ModelVersion.objects.select_for_update(of=("self",)).select_related("model").get(pk=version_id)
    if version.state == state:
        return version
    before, version.state = version.state, state
    version.save(update_fields=["state"])
    record_audit(
        "model_version.state_changed",
        subject=version,
        actor=actor,
        tenant_id=version.model.tenant_id,
        before={"state": before},
        after={"state": state},
    )
    _publish(version.model, *Instance.objects.filter(version=version).exclude(state="stopped"))
    return version


def _check_launch(engine: str, *, artefact_uri: str, arguments: Mapping[str, object], memory_bytes: int) -> None:
    try:
        room = get_engine(engine)
    except UnknownEngine as error:
        raise InvalidInput("engine", str(error)) from error
    if not all(isinstance(value, str | int | float | bool) for value in arguments.values()):
        raise InvalidInput("engine_args", "Engine arguments are text, numbers or true and false.")
    if not all(_is_text(text) for pair in arguments.items() for text in pair if isinstance(text, str)):
        raise InvalidInput("engine_args", "Engine arguments are Unicode text without NUL.")
    if memory_bytes < 0:
        raise InvalidInput("memory_bytes", "A size in bytes is not negative.")
    if not artefact_uri:
        return
    if room.launch is None:
        raise InvalidInput("engine", f"The pool cannot start {room.title} itself; attach a running one by its address.")
    if len(artefact_uri) > 500 or not artefact_uri.startswith(("package:", "file:///")):
        raise InvalidInput("artefact_uri", "An artefact is package:MODULE/FILE or file:///PATH.")
    if memory_bytes == 0:
        raise InvalidInput("memory_bytes", "Say how many bytes one instance claims on its device.")
    try:
        room.launch.check_args(arguments)  # type: ignore[arg-type]  # values were checked above
    except EngineArgumentsRefused as error:
        raise InvalidInput("engine_args", str(error)) from error


def _is_text(text: str) -> bool:
    """Whether a process can be given it, and the database can store it."""
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _check_replicas(replicas: int, *, launchable: bool) -> None:
    if not 0 <= replicas <= MAX_REPLICAS:
        raise InvalidInput("replicas", f"Replicas are between 0 and {MAX_REPLICAS}.")
    if replicas and not launchable:
        raise InvalidInput("replicas", "A version without an artefact takes attached engines only.")


def _publish(model: Model, *instances: Instance, changes: Changes | None = None) -> None:
    collected = Changes() if changes is None else changes
    collected.add(Section.MODELS, model.pk)
    for instance in instances:
        collected.add(Section.ENDPOINTS, instance.pk)
    collected.add(Section.POOL, model.pk)
    if changes is None:
        collected.publish()
