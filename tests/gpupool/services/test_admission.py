"""From a draft to requests: what is missing is told, what was found is kept, and a switch is one step."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone
from pytest_django import Settings

from core.epochs import Section, current_epoch
from core.refusals import Conflict
from gpupool.admission_settings import AdmissionSettings
from gpupool.models import Instance, InstanceDesire, InstanceState, Model, ModelVersion, VersionState
from gpupool.policies.admission import Rule
from gpupool.policies.manifest import digest, read_manifest, stated
from gpupool.reads.catalogue import lineage
from gpupool.selectors import list_ready_endpoints
from gpupool.services.admission import (
    NotAdmitted,
    admit_version,
    reopen_version,
    retire_version,
    serve_version,
    switch_version,
)
from gpupool.services.catalogue import change_version, create_version
from gpupool.weights.hashing import make_manifest
from gpupool.weights.signature import Trust
from tenants.actor import SYSTEM
from tenants.erasure import all_held
from tenants.models import AuditEvent
from tenants.services import InvalidInput
from tests.doubles.sigstore import IDENTITY, ISSUER, Sigstore
from tests.factories import make_adapter, make_instance, make_model, make_tenant

pytestmark = pytest.mark.django_db

TINY = Path(__file__).resolve().parents[2] / "data" / "tiny512.gguf"
MANIFEST = stated(make_manifest(TINY))
CARD = {
    "model": "qwen3",
    "version": "v1",
    "licence": "apache-2.0",
    "intended_use": "Tests.",
    "data_sets": [{"name": "noise", "sha256": "a" * 64, "sampling_share": "1", "de_identification": "None: noise."}],
}


@pytest.fixture(autouse=True)
def required(settings: Settings) -> None:
    settings.MODEL_ADMISSION = AdmissionSettings(Rule.REQUIRED)


@pytest.fixture
def sigstore(settings: Settings, tmp_path: Path) -> Sigstore:
    made = Sigstore()
    root = made.write_trusted_root(tmp_path / "trusted_root.json")
    settings.MODEL_ADMISSION = AdmissionSettings(Rule.REQUIRED, Trust(root, (IDENTITY,), ISSUER))
    return made


def a_draft(model: Model | None = None, name: str = "v1", **more: Any) -> ModelVersion:
    given: dict[str, Any] = {
        "engine": "llamacpp",
        "artefact_uri": TINY.as_uri(),
        "memory_bytes": 1 << 20,
        "device_kind": "cpu",
        "manifest": MANIFEST,
    }
    version = create_version(model or make_model("qwen3"), name=name, actor=SYSTEM, **(given | more))
    return change_version(version.pk, card=CARD | {"version": name}, actor=SYSTEM)


def signed(sigstore: Sigstore, sha256: str) -> bytes:
    return json.dumps(sigstore.sign_digest(sha256)).encode()


@pytest.mark.shows("R74")
def test_a_version_with_all_that_is_asked_for_is_admitted_and_serves() -> None:
    version = a_draft()
    assert version.state == VersionState.DRAFT
    with pytest.raises(Conflict, match="is a draft: admit it first"):
        serve_version(version.pk, actor=SYSTEM)
    admitted = admit_version(version.pk, actor=SYSTEM)
    assert (admitted.state, admitted.admitted_at is not None) == (VersionState.ADMITTED, True)
    assert admitted.checks["manifest"] == {
        "sha256": digest(read_manifest(MANIFEST)),
        "files": 1,
        "bytes": TINY.stat().st_size,
    }
    assert admitted.checks["card"] == {"licence": "apache-2.0", "data_sets": 1, "disclosed": True}
    assert admitted.card["data_sets"][0]["sampling_share"] == 1.0
    assert admit_version(version.pk, actor=SYSTEM).admitted_at == admitted.admitted_at
    assert serve_version(version.pk, actor=SYSTEM).state == VersionState.SERVING
    actions = AuditEvent.objects.filter(action="model_version.state_changed").values_list("after__state", flat=True)
    assert sorted(actions) == ["admitted", "serving"]


@pytest.mark.shows("R74")
def test_all_that_is_missing_is_told_at_once_and_nothing_is_kept() -> None:
    version = a_draft(manifest=None)
    change_version(version.pk, card={"model": "qwen3", "data_sets": [{"name": "noise"}]}, actor=SYSTEM)
    with pytest.raises(NotAdmitted) as refused:
        admit_version(version.pk, actor=SYSTEM)
    told = " ".join(refused.value.reasons)
    for part in ("no manifest", "lacks version", "lacks licence", "lacks intended_use", "(noise) lacks sha256"):
        assert part in told
    version.refresh_from_db()
    assert (version.state, version.checks, version.admitted_at) == (VersionState.DRAFT, {}, None)


@pytest.mark.shows("R68")
def test_with_a_trusted_root_a_signature_is_asked_for_and_verified(sigstore: Sigstore) -> None:
    version = a_draft()
    with pytest.raises(NotAdmitted, match="There is no signature"):
        admit_version(version.pk, actor=SYSTEM)
    with pytest.raises(NotAdmitted, match="is of something else"):
        admit_version(version.pk, bundle=signed(sigstore, "0" * 64), actor=SYSTEM)
    with pytest.raises(NotAdmitted, match="not a good signature"):
        admit_version(version.pk, bundle=signed(Sigstore(), digest(read_manifest(MANIFEST))), actor=SYSTEM)
    bundle = signed(sigstore, digest(read_manifest(MANIFEST)))
    admitted = admit_version(version.pk, bundle=bundle, actor=SYSTEM)
    assert admitted.checks["signature"] == {
        "covers": "manifest",
        "identity": IDENTITY,
        "issuer": ISSUER,
        "signed_at": "2026-11-01T12:00:00+00:00",
    }
    assert admitted.manifest == MANIFEST


def test_where_only_the_file_was_signed_nodes_check_what_was_signed(sigstore: Sigstore) -> None:
    admitted = admit_version(a_draft().pk, bundle=signed(sigstore, MANIFEST["files"][0]["sha256"]), actor=SYSTEM)
    assert "tree" not in admitted.manifest["files"][0]  # nobody vouches for it
    assert admitted.checks["signature"]["covers"] == "files"


def test_a_signature_is_not_believed_without_a_trusted_root() -> None:
    with pytest.raises(NotAdmitted, match="GATEHOUSE_TRUSTED_ROOT is not set"):
        admit_version(a_draft().pk, bundle=b"{}", actor=SYSTEM)


def test_a_bill_of_materials_is_checked_where_it_is_given() -> None:
    version = a_draft()
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": "qwen3", "version": "1"}]}
    with pytest.raises(NotAdmitted, match="does not name the artefact's file"):
        admit_version(version.pk, sbom=document, actor=SYSTEM)
    document["components"][0]["hashes"] = [{"alg": "SHA-256", "content": MANIFEST["files"][0]["sha256"]}]  # type: ignore[index]  # a list of objects
    admitted = admit_version(version.pk, sbom=document, actor=SYSTEM)
    assert admitted.checks["sbom"] == {"format": "CycloneDX 1.6", "components": 1}


def test_the_audit_log_keeps_what_a_manifest_comes_to() -> None:
    version = a_draft(manifest=None)
    change_version(version.pk, manifest=MANIFEST, actor=SYSTEM)
    event = AuditEvent.objects.filter(action="model_version.changed", after__has_key="manifest").get()
    expected = {"sha256": digest(read_manifest(MANIFEST)), "files": 1, "bytes": TINY.stat().st_size}
    assert (event.before["manifest"], event.after["manifest"]) == ({}, expected)


def test_only_a_draft_is_described_otherwise() -> None:
    version = admit_version(a_draft().pk, actor=SYSTEM)
    with pytest.raises(Conflict, match="only a draft can be changed"):
        change_version(version.pk, memory_bytes=1, actor=SYSTEM)
    reopened = reopen_version(version.pk, actor=SYSTEM)
    assert (reopened.state, reopened.checks, reopened.admitted_at) == (VersionState.DRAFT, {}, None)
    assert change_version(version.pk, memory_bytes=2, devices=1, actor=SYSTEM).memory_bytes == 2


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"engine_args": {"n_ctx": "many"}}, "engine_args"),
        ({"engine_args": {"no_such": 1}}, "engine_args"),
        ({"artefact_uri": "http://elsewhere/m.gguf"}, "artefact_uri"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"manifest": {"files": []}}, "manifest"),
        ({"card": {"x": "y" * 300_000}}, "card"),
        ({"card": {"licence": "a\0b"}}, "card"),
        ({"card": {"base_models": [{"\ud800": "x"}]}}, "card"),
        ({"devices": 0}, "devices"),
        ({"state": "serving"}, "state"),
        ({"tenant_id": make_tenant}, "tenant_id"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(values: dict[str, Any], field: str) -> None:
    mine = make_tenant()
    version = a_draft(make_model("qwen3", tenant_id=mine.pk))
    values = {name: value().pk if callable(value) else value for name, value in values.items()}
    with pytest.raises(InvalidInput) as refused:
        change_version(version.pk, actor=SYSTEM, **values)
    assert refused.value.field == field


@pytest.mark.shows("R85")
def test_a_switch_takes_the_requests_from_one_version_to_the_other_in_one_step() -> None:
    model = make_model("qwen3")
    old, new = a_draft(model, "v1"), a_draft(model, "v2")
    for version in (old, new):
        admit_version(version.pk, actor=SYSTEM)
    serve_version(old.pk, actor=SYSTEM)
    make_instance(old, port=1)
    with pytest.raises(Conflict, match="No instance of v2 is ready"):
        switch_version(new.pk, instead_of=old.pk, actor=SYSTEM)
    coming = make_instance(new, port=2, state=InstanceState.LOADING)
    assert [endpoint.port for endpoint in list_ready_endpoints()] == [1]
    coming.state = InstanceState.READY
    coming.save()
    assert [endpoint.port for endpoint in list_ready_endpoints()] == [1]  # admitted: loaded, and asked nothing yet
    before = current_epoch(Section.ENDPOINTS)
    switch_version(new.pk, instead_of=old.pk, actor=SYSTEM)
    assert [endpoint.port for endpoint in list_ready_endpoints()] == [2]
    assert current_epoch(Section.ENDPOINTS) > before
    old.refresh_from_db()
    assert old.state == VersionState.RETIRED


def test_of_two_switches_away_from_one_version_the_second_is_told() -> None:
    model = make_model("qwen3")
    old, new, other = (a_draft(model, name) for name in ("v1", "v2", "v3"))
    for port, version in enumerate((old, new, other), 1):
        admit_version(version.pk, actor=SYSTEM)
        make_instance(version, port=port)
    serve_version(old.pk, actor=SYSTEM)
    switch_version(new.pk, instead_of=old.pk, actor=SYSTEM)
    with pytest.raises(Conflict, match="v1 is retired: nothing is served instead of it"):
        switch_version(other.pk, instead_of=old.pk, actor=SYSTEM)
    switch_version(new.pk, instead_of=old.pk, actor=SYSTEM)  # the answer was lost, and it is asked for again
    assert [endpoint.port for endpoint in list_ready_endpoints()] == [2]


@pytest.mark.parametrize("useless", [{"desire": InstanceDesire.STOPPED}, {"tenant_id": UUID(int=7)}, {"port": None}])
def test_requests_are_not_switched_to_what_takes_none_of_them(useless: dict[str, Any]) -> None:
    model = make_model("qwen3")
    old, new = a_draft(model, "v1"), a_draft(model, "v2")
    for version in (old, new):
        admit_version(version.pk, actor=SYSTEM)
    serve_version(old.pk, actor=SYSTEM)
    Instance.objects.filter(pk=make_instance(new, port=1).pk).update(**useless)
    with pytest.raises(Conflict, match="No instance of v2 is ready"):
        switch_version(new.pk, instead_of=old.pk, actor=SYSTEM)


def test_a_version_that_serves_is_not_taken_out_by_admitting_it_again(settings: Settings) -> None:
    version = a_draft()
    admit_version(version.pk, actor=SYSTEM)
    serve_version(version.pk, actor=SYSTEM)
    for rule in Rule:
        settings.MODEL_ADMISSION = AdmissionSettings(rule)
        with pytest.raises(Conflict, match="The version serves"):
            admit_version(version.pk, actor=SYSTEM)
    version.refresh_from_db()
    assert version.state == VersionState.SERVING


@pytest.mark.parametrize("rule", Rule)
def test_what_was_loaded_before_a_draft_was_changed_never_serves_as_the_changed_one(
    settings: Settings, rule: Rule
) -> None:
    version = a_draft()
    admit_version(version.pk, actor=SYSTEM)
    running = make_instance(version, port=1)
    Instance.objects.filter(pk=running.pk).update(attached=False)
    ModelVersion.objects.filter(pk=version.pk).update(last_stable_at=timezone.now())
    settings.MODEL_ADMISSION = AdmissionSettings(rule)
    assert reopen_version(version.pk, actor=SYSTEM).last_stable_at is None
    change_version(version.pk, artefact_uri="file:///models/other.gguf", actor=SYSTEM)
    for step in (admit_version, serve_version):
        with pytest.raises(Conflict):
            step(version.pk, actor=SYSTEM)
    Instance.objects.filter(pk=running.pk).update(desire=InstanceDesire.STOPPED)
    assert admit_version(version.pk, actor=SYSTEM).state == VersionState.ADMITTED


def test_a_switch_is_between_versions_of_one_model_and_one_tenant() -> None:
    model, tenant = make_model("qwen3"), make_tenant()
    version, others = a_draft(model), a_draft(make_model("other"))
    own = a_draft(model, "own", tenant_id=tenant.pk)
    for wrong in (version, others, own):
        with pytest.raises(Conflict, match="another one of the same model"):
            switch_version(version.pk, instead_of=wrong.pk, actor=SYSTEM)


def test_a_version_that_never_was_admitted_does_not_come_back_where_that_is_asked_for(
    settings: Settings,
) -> None:
    settings.MODEL_ADMISSION = AdmissionSettings(Rule.OFF)
    version = create_version(make_model("qwen3"), name="v1", engine="llamacpp", artefact_uri=TINY.as_uri(),
                             memory_bytes=1, actor=SYSTEM)  # fmt: skip
    assert version.state == VersionState.SERVING
    retire_version(version.pk, actor=SYSTEM)
    serve_version(version.pk, actor=SYSTEM)
    retire_version(version.pk, actor=SYSTEM)
    settings.MODEL_ADMISSION = AdmissionSettings(Rule.REQUIRED)
    with pytest.raises(Conflict, match="was never admitted"):
        serve_version(version.pk, actor=SYSTEM)


@pytest.mark.shows("R74")
def test_a_versions_lineage_goes_from_its_data_to_what_was_made_on_top_of_it() -> None:
    version = admit_version(a_draft().pk, actor=SYSTEM)
    adapter = make_adapter(version)
    told = lineage(version)
    assert told["manifest_sha256"] == digest(read_manifest(MANIFEST))
    assert [one["sha256"] for one in told["data_sets"]] == ["a" * 64]
    assert [(one["id"], one["rank"], one["job_id"]) for one in told["adapters"]] == [(adapter.pk, 8, None)]


def test_a_version_that_was_rolled_back_unadmitted_can_be_admitted() -> None:
    version = a_draft()
    ModelVersion.objects.filter(pk=version.pk).update(state=VersionState.ADMITTED)
    with pytest.raises(Conflict, match="was never admitted"):
        serve_version(version.pk, actor=SYSTEM)
    assert admit_version(version.pk, actor=SYSTEM).admitted_at is not None
    assert serve_version(version.pk, actor=SYSTEM).state == VersionState.SERVING


def test_a_tenants_own_versions_are_erased_with_it() -> None:
    model, tenant = make_model("qwen3"), make_tenant()
    own, shared = a_draft(model, "own", tenant_id=tenant.pk), a_draft(model, "shared")
    bound = make_instance(shared, port=1, state=InstanceState.STOPPED)
    bound.tenant_id = tenant.pk
    bound.save()
    held = {one.model._meta.object_name: set(one.of_tenant(tenant.pk)) for one in all_held()}
    assert (held["ModelVersion"], held["Instance"]) == ({own}, {bound})
