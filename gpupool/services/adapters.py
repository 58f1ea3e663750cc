"""Adapters that an operator brings; those that trainings make are registered in gpupool.services.training_runs."""

import re
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from django.db import IntegrityError, transaction

from core.refusals import Conflict
from gpupool.engines.base import EngineArgumentsRefused
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.models import Adapter, AdapterState, ModelVersion
from gpupool.policies.adapter import LARGEST_RANK
from gpupool.services.catalogue import lock_version
from gpupool.services.version_checks import check_uri
from tenants.actor import Actor
from tenants.models import Tenant
from tenants.services import InvalidInput, record_audit

LARGEST_BYTES: Final = 2**62
LARGEST_ALPHA: Final = 1e6
MOST_MODULES: Final = 100
_LONGEST_NAME: Final = 400
_LONGEST_MODULE: Final = 200
_HEX: Final = re.compile(r"[0-9a-f]{64}")


@transaction.atomic
def register_adapter(
    version_id: UUID,
    *,
    name: str,
    artefact_uri: str,
    sha256: str,
    size_bytes: int,
    rank: int,
    actor: Actor,
    alpha: float = 0,
    target_modules: Sequence[str] = (),
    tenant_id: UUID | None = None,
) -> Adapter:
    """Weights that go on top of this version and no other; `sha256` and `size_bytes` are those of the weights' file.

    `tenant_id` makes it private; of a private model's or version's it is that tenant's anyhow.
    Raises ModelVersion.DoesNotExist, InvalidInput naming the field: for a rank above what the version's engine is
    started for, for one.
    """
    version = lock_version(version_id)
    name = name.strip()
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise InvalidInput("name", f"An adapter needs a name of 1 to {_LONGEST_NAME} printable characters.")
    check_uri(artefact_uri)
    if not _HEX.fullmatch(sha256):
        raise InvalidInput("sha256", "A SHA-256 is 64 hexadecimal digits in lower case.")
    if not 0 < size_bytes <= LARGEST_BYTES:
        raise InvalidInput("size_bytes", "The weights have a size above 0.")
    if not 0 <= alpha <= LARGEST_ALPHA:
        raise InvalidInput("alpha", f"Alpha is a number from 0 to {LARGEST_ALPHA:g}.")
    modules = sorted({module.strip() for module in target_modules})
    if len(modules) > MOST_MODULES or not all(0 < len(m) <= _LONGEST_MODULE and m.isprintable() for m in modules):
        raise InvalidInput("target_modules", f"Modules are at most {MOST_MODULES} names.")
    check_rank(version, rank)
    adapter = Adapter(
        version=version,
        tenant_id=_owner(version, tenant_id),
        name=name,
        artefact_uri=artefact_uri,
        sha256=sha256,
        size_bytes=size_bytes,
        rank=rank,
        alpha=alpha,
        target_modules=modules,
    )
    try:
        with transaction.atomic():
            adapter.save(force_insert=True)
    except IntegrityError as error:
        raise InvalidInput("name", "There is an adapter of that name already.") from error
    record_audit(
        "adapter.created",
        subject=adapter,
        actor=actor,
        tenant_id=adapter.tenant_id,
        after={"name": name, "version": str(version.pk), "sha256": sha256, "rank": rank, "artefact": artefact_uri},
    )
    return adapter


@transaction.atomic
def retire_adapter(adapter_id: UUID, *, actor: Actor) -> Adapter:
    """Not to be used any more; its files stay. Raises Adapter.DoesNotExist, Conflict for one that is retired."""
    adapter = Adapter.objects.select_for_update(of=("self",)).select_related("version__model").get(pk=adapter_id)
    if adapter.state == AdapterState.RETIRED:
        raise Conflict("The adapter is retired already.")
    before, adapter.state = adapter.state, AdapterState.RETIRED
    adapter.save(update_fields=["state"])
    record_audit(
        "adapter.retired",
        subject=adapter,
        actor=actor,
        tenant_id=adapter.tenant_id,
        before={"state": before},
        after={"state": adapter.state},
    )
    return adapter


def check_rank(version: ModelVersion, rank: int) -> None:
    """Raises InvalidInput for a rank that the version's engine does not take as it is started."""
    if not 1 <= rank <= LARGEST_RANK:
        raise InvalidInput("rank", f"A rank is a whole number from 1 to {LARGEST_RANK}.")
    if not version.artefact_uri:
        return  # how an engine was started that somebody else started is not in the catalogue
    try:
        room = get_engine(version.engine)
        most = None if room.adapter_rank is None else room.adapter_rank(version.engine_args)
    except (UnknownEngine, EngineArgumentsRefused) as error:
        raise InvalidInput("version", str(error)) from error
    if most == 0:
        raise InvalidInput("version", f"{room.title} is not started for adapters: give the version the argument lora.")
    if most is not None and rank > most:
        raise InvalidInput("rank", f"The version's engine takes ranks up to {most} (max_lora_rank), not {rank}.")


def _owner(version: ModelVersion, tenant_id: UUID | None) -> UUID | None:
    owner = version.owner_id
    if owner is not None and tenant_id not in (None, owner):
        raise InvalidInput("tenant_id", "The version is another tenant's own.")
    if tenant_id is not None and not Tenant.objects.filter(pk=tenant_id).exists():
        raise InvalidInput("tenant_id", "There is no such tenant.")
    return owner or tenant_id
