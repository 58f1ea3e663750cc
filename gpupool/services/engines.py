"""The switches of engines: what an installation uses of the rooms that it has, changed while everything runs."""

from dataclasses import dataclass

from django.db import transaction

from core.epochs import Section, lock_section
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.models import EngineSwitch, Instance, InstanceState
from gpupool.services.changes import Changes
from tenants.actor import Actor
from tenants.services import record_audit


@dataclass(frozen=True, slots=True)
class EngineSwitched:
    """How the switch stands now; `instances` of that engine have not stopped, and were told to the relays."""

    name: str
    enabled: bool
    changed: bool
    instances: int


@transaction.atomic
def set_engine_enabled(name: str, enabled: bool, *, actor: Actor) -> EngineSwitched:
    """Switch an engine on or off for the whole installation.

    Off: its endpoints leave the routing, and nothing new of it is placed or attached. What runs is left alone,
    requests that are under way finish, and on again brings the endpoints back. Raises UnknownEngine.
    """
    get_engine(name)
    EngineSwitch.objects.get_or_create(name=name)
    switch = EngineSwitch.objects.select_for_update().get(name=name)
    # Before the instances are read: one that became ready since would be told to the relays by nobody as switched off.
    lock_section(Section.ENDPOINTS)
    instances = list(
        Instance.objects.filter(engine=name).exclude(state=InstanceState.STOPPED).values_list("pk", flat=True)
    )
    if switch.enabled == enabled:
        return EngineSwitched(name, enabled, changed=False, instances=len(instances))
    switch.enabled = enabled
    switch.save(update_fields=["enabled", "changed_at"])
    record_audit(
        "engine.enabled" if enabled else "engine.disabled",
        subject=switch,
        actor=actor,
        before={"engine": name, "enabled": not enabled},
        after={"engine": name, "enabled": enabled, "instances": len(instances)},
    )
    changes = Changes()
    for instance_id in instances:
        changes.add(Section.ENDPOINTS, instance_id)
    changes.add(Section.POOL, switch.pk)
    changes.publish()
    return EngineSwitched(name, enabled, changed=True, instances=len(instances))


def why_switched_off(name: str) -> str | None:
    """A sentence where the engine is switched off; None where it may be used."""
    if not EngineSwitch.objects.filter(name=name, enabled=False).exists():
        return None
    return switched_off(name)


def switched_off(name: str) -> str:
    """The sentence that says it, wherever something waits or is refused for it."""
    try:
        title = get_engine(name).title
    except UnknownEngine:
        title = name
    return f"The engine {title} is switched off."
