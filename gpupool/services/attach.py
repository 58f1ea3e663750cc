"""Taking an engine that already runs, by its address, into the catalogue and the routing."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from django.db import transaction

from core.epochs import Section
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.models import Instance, InstanceDesire, InstanceState, Model, ModelVersion
from gpupool.policies.instance import State
from gpupool.services.catalogue import create_model, create_version
from gpupool.services.changes import Changes
from gpupool.services.engines import why_switched_off
from gpupool.services.instances import move
from gpupool.services.traces import note_state
from tenants.actor import Actor
from tenants.services import InvalidInput, record_audit

_VARIABLE: Final = re.compile(r"GATEHOUSE_ENGINE_KEY[A-Za-z0-9_]{0,100}")
"""Only variables made for this: any other name could send a secret of ours, such as DATABASE_URL, to an address
that the caller chose."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine answers; `base_path` comes before `/v1`, empty or with a leading slash."""

    host: str
    port: int
    base_path: str
    tls: bool = False  # https

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base_path}"


def parse_engine_url(url: str) -> EngineAddress:
    """Host, port and base path of an engine's URL; a trailing `/v1` is taken off, for people who paste it.

    Raises InvalidInput with a sentence for anything that is not a plain http or https address.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise InvalidInput("url", f"{url!r} is not an address: {error}.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("url", "An engine's address looks like http://host:8000 or https://host.")
    if parts.username or parts.password:
        raise InvalidInput("url", "No credentials in the address; name an environment variable that holds them.")
    if parts.query or parts.fragment:
        raise InvalidInput("url", "An engine's address has no query and no fragment.")
    base_path = parts.path.rstrip("/").removesuffix("/v1")
    address = parts.hostname + base_path
    if len(parts.hostname) > 255 or len(base_path) > 200 or not (address.isascii() and address.isprintable()):
        raise InvalidInput("url", "The address is too long, or has characters that do not belong there.")
    if " " in address:
        raise InvalidInput("url", "The address has a space in it.")
    if port == 0:
        raise InvalidInput("url", "Port 0 is no address.")
    tls = parts.scheme == "https"
    return EngineAddress(parts.hostname, port or (443 if tls else 80), base_path, tls)


@dataclass(frozen=True, slots=True)
class Attached:
    """The instance, and whether it is new."""

    instance: Instance
    created: bool


@transaction.atomic
def attach_engine(
    url: str,
    *,
    engine: str,
    model_name: str,
    actor: Actor,
    served_name: str = "",
    version_name: str = "",
    credential_variable: str = "",
    slots: int | None = None,
) -> Attached:
    """Attach the engine at `url` as an instance of `model_name`, making the model and version where missing.

    It takes requests once a health probe has found it (`controller`, or the caller by `set_probed_state`).
    `served_name` is the name that the engine knows the model by, `model_name` where empty. Attaching the
    same address to the same model again returns the instance there is, brought up to date.
    Raises InvalidInput naming the field.
    """
    address = parse_engine_url(url)
    try:
        get_engine(engine)
    except UnknownEngine as error:
        raise InvalidInput("engine", str(error)) from error
    switched_off = why_switched_off(engine)
    if switched_off is not None:
        raise InvalidInput("engine", f"{switched_off} Switch it on first.")
    if credential_variable and not _VARIABLE.fullmatch(credential_variable):
        raise InvalidInput("credential_variable", "The variable's name must begin with GATEHOUSE_ENGINE_KEY.")
    if slots is not None and not 1 <= slots <= 100_000:
        raise InvalidInput("slots", "Slots are between 1 and 100,000.")
    changes = Changes()
    # The lock lets one attachment of a model happen after the other, so that the second finds the first.
    model = _locked_model(model_name)
    if model is None:
        try:
            model = create_model(model_name, actor=actor, changes=changes)
        except InvalidInput:
            model = _locked_model(model_name)  # made by another at this moment
            if model is None:
                raise
    version = _version_for(
        model, engine=engine, served_name=served_name, version_name=version_name, actor=actor, changes=changes
    )
    existing = (
        Instance.objects.select_for_update(of=("self",))
        .select_related("version__model")
        .filter(attached=True, host=address.host, port=address.port, base_path=address.base_path, version=version)
        .exclude(state=InstanceState.STOPPED)
        .first()
    )
    if existing is not None:
        _update(
            existing,
            tls=address.tls,
            credential_variable=credential_variable,
            slots=slots,
            actor=actor,
            changes=changes,
        )
        changes.publish()
        return Attached(existing, created=False)
    instance = Instance.objects.create(
        version=version,
        attached=True,
        engine=engine,
        host=address.host,
        port=address.port,
        base_path=address.base_path,
        tls=address.tls,
        credential_variable=credential_variable,
        slots=slots,
        desire=InstanceDesire.RUNNING,
    )
    note_state(instance, actor=actor)
    record_audit(
        "instance.attached",
        subject=instance,
        actor=actor,
        tenant_id=model.tenant_id,
        after={"url": address.url, "engine": engine, "model": model.name, "version": version.name},
    )
    move(instance, State.WARMING, reason="Waiting for the first health probe.", actor=actor, changes=changes)
    changes.publish()
    return Attached(instance, created=True)


def _locked_model(name: str) -> Model | None:
    return Model.objects.select_for_update().filter(name=name.strip()).first()


def _version_for(
    model: Model, *, engine: str, served_name: str, version_name: str, actor: Actor, changes: Changes
) -> ModelVersion:
    """The version with that name; without a name, one that already takes such engines, else a new one."""
    versions = ModelVersion.objects.filter(model=model)
    served = served_name or model.name
    if version_name:
        found = versions.filter(name=version_name).first()
        if found is not None and (found.engine != engine or (served_name and found.served_name != served_name)):
            raise InvalidInput(
                "version",
                f"{model.name} {version_name} is {found.engine} serving {found.served_name!r}; name another version.",
            )
    else:
        found = versions.filter(engine=engine, served_name=served).order_by("-id").first()
    if found is not None:
        return found
    name = version_name or _free_name(model, f"{engine}-attached")
    return create_version(model, name=name, engine=engine, served_name=served, actor=actor, changes=changes)


def _free_name(model: Model, wanted: str) -> str:
    taken = set(ModelVersion.objects.filter(model=model).values_list("name", flat=True))
    number, name = 2, wanted
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name


def _update(
    instance: Instance, *, tls: bool, credential_variable: str, slots: int | None, actor: Actor, changes: Changes
) -> None:
    before = {"tls": instance.tls, "credential_variable": instance.credential_variable, "slots": instance.slots}
    after = {
        "tls": tls,
        "credential_variable": credential_variable or instance.credential_variable,
        "slots": slots or instance.slots,
    }
    if before == after:
        return
    instance.tls, instance.credential_variable, instance.slots = (
        tls,
        str(after["credential_variable"]),
        slots or instance.slots,
    )
    instance.save(update_fields=["tls", "credential_variable", "slots"])
    record_audit("instance.changed", subject=instance, actor=actor, before=before, after=after)
    changes.add(Section.ENDPOINTS, instance.pk)
