"""A version's way to its requests: admitted on what it is made of, served, switched to, retired."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from core.refusals import Conflict
from gpupool.admission_settings import AdmissionSettings, admission_settings
from gpupool.models import Instance, InstanceDesire, InstanceState, ModelVersion, VersionState
from gpupool.policies.admission import Stage, missing, step_fault
from gpupool.policies.manifest import BadManifest, Manifest, digest, read_manifest, stated, without_trees
from gpupool.policies.model_card import IncompleteCard, read_card
from gpupool.policies.sbom import BadSbom, read_sbom
from gpupool.selectors import switched_off_engines
from gpupool.services.catalogue import lock_version, publish_model
from gpupool.weights.signature import Covers, SignatureRefused, verify_signature
from tenants.actor import Actor
from tenants.services import record_audit


class NotAdmitted(Conflict):
    """The version stays what it is; `reasons` has a sentence for everything that is missing or wrong."""


@transaction.atomic
def admit_version(
    version_id: UUID, *, actor: Actor, bundle: bytes | None = None, sbom: Mapping[str, Any] | None = None
) -> ModelVersion:
    """Look at manifest and card, and at a signature and a bill of materials where they are given.

    Its instances may load from now on; requests go to them once it serves. What was found is kept in `checks`.
    Raises ModelVersion.DoesNotExist, Conflict for a version that is past this, NotAdmitted with all that is missing.
    """
    version = lock_version(version_id)
    settings = admission_settings()
    if version.state == VersionState.SERVING:
        raise Conflict("The version serves: to admit it again would take its requests away. Retire it first.")
    _check_step(version, Stage.ADMITTED, settings)
    if version.state == VersionState.ADMITTED and version.admitted_at is not None:
        return version
    reasons = missing(
        manifest=bool(version.manifest),
        card=bool(version.card),
        signature=bundle is not None,
        rule=settings.rule,
        trusted_root=settings.trust is not None,
    )
    found: dict[str, Any] = {}
    manifest = _manifest(version, found, reasons)
    _card(version, found, reasons)
    if bundle is not None:
        manifest = _signature(bundle, manifest, settings, found, reasons)
    if sbom is not None:
        _sbom(sbom, manifest, found, reasons)
    if reasons:
        raise NotAdmitted("The version is not admitted: " + " ".join(reasons), reasons=reasons)
    version.checks, version.admitted_at = found, timezone.now()
    if manifest is not None:
        version.manifest = stated(manifest)
    version.save(update_fields=["checks", "admitted_at", "manifest", "card"])
    _move(version, VersionState.ADMITTED, actor=actor, more={"checks": found})
    publish_model(version.model, *_running(version))
    return version


@transaction.atomic
def serve_version(version_id: UUID, *, actor: Actor) -> ModelVersion:
    """Take requests (again), with the replicas that were wanted. Raises ModelVersion.DoesNotExist, Conflict."""
    return _step(version_id, VersionState.SERVING, actor=actor)


@transaction.atomic
def retire_version(version_id: UUID, *, actor: Actor) -> ModelVersion:
    """No more requests and no more replicas; the controller drains its instances.

    Raises ModelVersion.DoesNotExist, Conflict.
    """
    return _step(version_id, VersionState.RETIRED, actor=actor)


@transaction.atomic
def reopen_version(version_id: UUID, *, actor: Actor) -> ModelVersion:
    """A draft again, to be described otherwise; what was found at its admission is forgotten.

    Raises ModelVersion.DoesNotExist, Conflict for one that was not admitted.
    """
    version = lock_version(version_id)
    _check_step(version, Stage.DRAFT, admission_settings())
    version.checks, version.admitted_at, version.last_stable_at = {}, None, None  # what it becomes was never loaded
    version.save(update_fields=["checks", "admitted_at", "last_stable_at"])
    _move(version, VersionState.DRAFT, actor=actor)
    publish_model(version.model, *_running(version))
    return version


@transaction.atomic
def switch_version(version_id: UUID, *, instead_of: UUID, actor: Actor, reason: str = "") -> ModelVersion:
    """Serve one version instead of another of the same model, in one step for every door: no request meets neither.

    `reason`: where something else than a person decided.
    Raises ModelVersion.DoesNotExist, and Conflict where the versions are not of one model and tenant, where their
    states do not allow it, or where no instance of the new one is ready.
    """
    for pk in sorted((version_id, instead_of)):  # in one order: two switches of the same pair must not wait in a ring
        lock_version(pk)
    new, old = lock_version(version_id), lock_version(instead_of)
    if new.pk == old.pk or new.model_id != old.model_id or new.tenant_id != old.tenant_id:
        raise Conflict("A version is served instead of another one of the same model, for the same tenants.")
    if (new.state, old.state) == (VersionState.SERVING, VersionState.RETIRED):
        return new  # asked for again
    if old.state != VersionState.SERVING:  # somebody else was faster: else two versions would serve after two switches
        raise Conflict(f"{old.name} is {old.state}: nothing is served instead of it.")
    _check_step(new, Stage.SERVING, admission_settings())
    if not _takes_requests(new):
        raise Conflict(f"No instance of {new.name} is ready: its requests would have nowhere to go.")
    for version, state in ((new, VersionState.SERVING), (old, VersionState.RETIRED)):
        version.state_reason = reason
        version.save(update_fields=["state_reason"])
        if version.state != state:
            _move(version, state, actor=actor, more={"reason": reason} if reason else {})
    publish_model(new.model, *_running(new), *_running(old))
    return new


def card_faults(version: ModelVersion) -> list[str]:
    """What admission would refuse of its model card now, as sentences."""
    try:
        read_card(version.card, model=version.model.name, version=version.name)
    except IncompleteCard as error:
        return error.faults
    return []


def _step(version_id: UUID, state: VersionState, *, actor: Actor) -> ModelVersion:
    version = lock_version(version_id)
    if version.state == state:
        return version
    _check_step(version, Stage(state), admission_settings())
    if version.state_reason:
        version.state_reason = ""
        version.save(update_fields=["state_reason"])
    _move(version, state, actor=actor)
    publish_model(version.model, *_running(version))
    return version


def _check_step(version: ModelVersion, to: Stage, settings: AdmissionSettings) -> None:
    if version.state == to:
        return
    fault = step_fault(
        Stage(version.state),
        to,
        rule=settings.rule,
        admitted=version.admitted_at is not None,
        has_artefact=bool(version.artefact_uri),
    )
    if fault is not None:
        raise Conflict(fault)
    if version.state == VersionState.DRAFT and to is not Stage.RETIRED and _left_over(version):
        raise Conflict("Instances of what the version was before it became a draft still run: wait until they ended.")


def _left_over(version: ModelVersion) -> bool:
    """Whether instances run that were started as the version was described before; the controller ends them."""
    launched = Instance.objects.filter(version=version, attached=False).exclude(desire=InstanceDesire.STOPPED)
    return launched.exclude(state=InstanceState.STOPPED).exists()


def _takes_requests(version: ModelVersion) -> bool:
    """Whether an instance could answer anybody who may use the version: none that ends, and no other tenant's own."""
    ready = Instance.objects.filter(version=version, state=InstanceState.READY, desire=InstanceDesire.RUNNING)
    theirs = Q(tenant_id=None) if version.tenant_id is None else Q(tenant_id=None) | Q(tenant_id=version.tenant_id)
    return ready.filter(theirs, port__isnull=False).exclude(engine__in=switched_off_engines()).exists()


def _move(version: ModelVersion, state: VersionState, *, actor: Actor, more: Mapping[str, Any] | None = None) -> None:
    before, version.state = version.state, state
    version.save(update_fields=["state"])
    record_audit(
        "model_version.state_changed",
        subject=version,
        actor=actor,
        tenant_id=version.owner_id,
        before={"state": before},
        after={"state": state, **(more or {})},
    )


def _running(version: ModelVersion) -> list[Instance]:
    return list(Instance.objects.filter(version=version).exclude(state=InstanceState.STOPPED))


def _manifest(version: ModelVersion, found: dict[str, Any], reasons: list[str]) -> Manifest | None:
    if not version.manifest:
        return None
    try:
        manifest = read_manifest(version.manifest)
    except BadManifest as error:
        reasons.append(str(error))
        return None
    found["manifest"] = {"sha256": digest(manifest), "files": len(manifest.files), "bytes": manifest.total_bytes}
    return manifest


def _card(version: ModelVersion, found: dict[str, Any], reasons: list[str]) -> None:
    if not version.card:
        return
    try:
        version.card = read_card(version.card, model=version.model.name, version=version.name)
    except IncompleteCard as error:
        reasons += error.faults
        return
    found["card"] = {
        "licence": version.card["licence"],
        "data_sets": len(version.card.get("data_sets", ())),
        "disclosed": "undisclosed_data" not in version.card,
    }


def _signature(
    bundle: bytes,
    manifest: Manifest | None,
    settings: AdmissionSettings,
    found: dict[str, Any],
    reasons: list[str],
) -> Manifest | None:
    """The manifest as far as somebody vouches for it."""
    if settings.trust is None:
        reasons.append("A signature cannot be checked: GATEHOUSE_TRUSTED_ROOT is not set.")
    elif manifest is None:
        reasons.append("A signature is of a manifest or its files, and there is no manifest.")
    else:
        try:
            signed = verify_signature(bundle, manifest, settings.trust)
        except SignatureRefused as error:
            reasons.append(str(error))
            return manifest
        at = None if signed.at is None else datetime.fromtimestamp(signed.at, UTC).isoformat()
        found["signature"] = {
            "covers": signed.covers,
            "identity": signed.identity,
            "issuer": signed.issuer,
            "signed_at": at,
        }
        if signed.covers is Covers.FILES:
            return without_trees(manifest)
    return manifest


def _sbom(document: Mapping[str, Any], manifest: Manifest | None, found: dict[str, Any], reasons: list[str]) -> None:
    if manifest is None:
        reasons.append("A bill of materials is of an artefact's files, and there is no manifest.")
        return
    weights = [file.sha256 for file in manifest.files if file.path.endswith((".gguf", ".safetensors", ".bin", ".pt"))]
    try:
        sbom = read_sbom(document, artefact=weights or [file.sha256 for file in manifest.files])
    except BadSbom as error:
        reasons += error.faults
        return
    found["sbom"] = {"format": sbom.format, "components": sbom.components}
