"""What a version may be described as. Each check raises InvalidInput naming the field."""

import json
from collections.abc import Mapping
from typing import Any, Final

from core.storable import can_be_stored, why_unfit
from gpupool.engines.base import EngineArgumentsRefused
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.models import ModelVersion
from gpupool.policies.manifest import BadManifest, read_manifest, stated
from gpupool.policies.plain_yaml import MOST_BYTES
from gpupool.policies.version_needs import LARGEST_BYTES
from tenants.models import Tenant
from tenants.services import InvalidInput

MAX_REPLICAS: Final = 1000
_SCHEMES: Final = ("package:", "file:///")


def check_shape(version: ModelVersion) -> None:
    """Lengths and sizes that a row can hold."""
    if len(version.served_name) > 200:
        raise InvalidInput("served_name", "The name that the engine knows has at most 200 characters.")
    if not 0 <= version.memory_bytes <= LARGEST_BYTES:
        raise InvalidInput("memory_bytes", "A size in bytes is not negative.")


def check_launch(engine: str, *, artefact_uri: str, arguments: Mapping[str, object]) -> None:
    """That there is such an engine, and that it would start with this."""
    try:
        room = get_engine(engine)
    except UnknownEngine as error:
        raise InvalidInput("engine", str(error)) from error
    if not all(isinstance(value, str | int | float | bool) for value in arguments.values()):
        raise InvalidInput("engine_args", "Engine arguments are text, numbers or true and false.")
    if not all(can_be_stored(text) for pair in arguments.items() for text in pair if isinstance(text, str)):
        raise InvalidInput("engine_args", "Engine arguments are Unicode text without NUL.")
    if not artefact_uri:
        return
    if room.launch is None:
        raise InvalidInput("engine", f"The pool cannot start {room.title} itself; attach a running one by its address.")
    check_uri(artefact_uri)
    try:
        room.launch.check_args(arguments)  # type: ignore[arg-type]  # values were checked above
    except EngineArgumentsRefused as error:
        raise InvalidInput("engine_args", str(error)) from error


def check_uri(uri: str) -> None:
    """Where nodes find an artefact."""
    if len(uri) > 500 or not uri.startswith(_SCHEMES):
        raise InvalidInput("artefact_uri", "An artefact is package:MODULE/FILE or file:///PATH.")


def check_manifest(manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    """As it is kept; empty without one."""
    if not manifest:
        return {}
    try:
        return stated(read_manifest(manifest))
    except BadManifest as error:
        raise InvalidInput("manifest", str(error)) from error


def check_card(card: Mapping[str, Any] | None) -> dict[str, Any]:
    """As it is kept of a draft: whether it is complete is asked when the version is admitted."""
    if not card:
        return {}
    if len(json.dumps(card)) > MOST_BYTES:
        raise InvalidInput("card", f"A model card has at most {MOST_BYTES // 1024} KiB.")
    if (why := why_unfit(card)) is not None:
        raise InvalidInput("card", why)
    return dict(card)


def check_tenant(version: ModelVersion) -> None:
    """A version of one tenant's own is of a model that this tenant may use."""
    if version.tenant_id is None:
        return
    if version.model.tenant_id not in (None, version.tenant_id):
        raise InvalidInput("tenant_id", "The model is another tenant's own.")
    if not Tenant.objects.filter(pk=version.tenant_id).exists():
        raise InvalidInput("tenant_id", "There is no such tenant.")


def check_replicas(replicas: int, *, launchable: bool) -> None:
    """How many instances the controller is to keep."""
    if not 0 <= replicas <= MAX_REPLICAS:
        raise InvalidInput("replicas", f"Replicas are between 0 and {MAX_REPLICAS}.")
    if replicas and not launchable:
        raise InvalidInput("replicas", "A version without an artefact takes attached engines only.")
