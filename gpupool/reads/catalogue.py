"""Models, versions, other names and adapters, for pages and the control API."""

from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from gpupool.models import Adapter, Model, ModelAlias, ModelVersion, TrainingFile, VersionState
from gpupool.policies.manifest import digest, read_manifest


def list_models(*, name: str | None = None, tenant_id: UUID | None = None) -> QuerySet[Model]:
    """Every model with its other names, newest first; of a name or alias, or private to a tenant."""
    rows = Model.objects.prefetch_related("aliases").order_by("-pk")
    if name is not None:
        rows = rows.filter(Q(name=name) | Q(aliases__name=name)).distinct()
    return rows if tenant_id is None else rows.filter(tenant_id=tenant_id)


def find_model(name: str) -> Model | None:
    """The model of that name or alias."""
    return Model.objects.filter(Q(name=name) | Q(aliases__name=name)).first()


def list_aliases(model_id: UUID) -> QuerySet[ModelAlias]:
    """A model's other names, newest first."""
    return ModelAlias.objects.filter(model_id=model_id).select_related("model").order_by("-pk")


def list_versions(
    *, model: str | None = None, state: str | None = None, tenant_id: UUID | None = None
) -> QuerySet[ModelVersion]:
    """Every version with its model, newest first; of a model's name, in a state, a tenant's own."""
    asked = {"model__name": model, "state": state, "tenant_id": tenant_id}
    rows = ModelVersion.objects.select_related("model").order_by("-pk")
    return rows.filter(**{name: value for name, value in asked.items() if value is not None})


def get_version(version_id: UUID) -> ModelVersion:
    """One version with its model. Raises ModelVersion.DoesNotExist."""
    return list_versions().get(pk=version_id)


def list_adapters(
    *, version: UUID | None = None, tenant_id: UUID | None = None, state: str | None = None
) -> QuerySet[Adapter]:
    """Every adapter with the model that it is for, newest first."""
    asked = {"version_id": version, "tenant_id": tenant_id, "state": state}
    rows = Adapter.objects.select_related("version__model").order_by("-pk")
    return rows.filter(**{name: value for name, value in asked.items() if value is not None})


def lineage(version: ModelVersion) -> dict[str, Any]:
    """What a version is made of, as far as its card and admission say, and what was made on top of it."""
    card, checks = version.card, version.checks
    adapters = list(version.adapters.select_related("job").order_by("pk"))
    wanted = {adapter.job.training_file_id for adapter in adapters if adapter.job is not None}
    files = dict(TrainingFile.objects.filter(pk__in=wanted).values_list("pk", "sha256"))
    return {
        "model": version.model.name,
        "version": version.name,
        "manifest_sha256": digest(read_manifest(version.manifest)) if version.manifest else None,
        "licence": card.get("licence"),
        "base_models": _objects(card.get("base_models")),
        "data_sets": _objects(card.get("data_sets")),
        "undisclosed_data": card.get("undisclosed_data"),
        "admitted_at": version.admitted_at,
        "signature": checks.get("signature"),
        "sbom": checks.get("sbom"),
        "adapters": [
            {
                "id": adapter.pk,
                "name": adapter.name,
                "rank": adapter.rank,
                "sha256": adapter.sha256,
                "job_id": adapter.job.pk if adapter.job else None,
                "training_file_sha256": files.get(adapter.job.training_file_id) if adapter.job else None,
            }
            for adapter in adapters
        ],
    }


def _objects(value: object) -> list[dict[str, Any]]:
    """Of a card that nobody has looked at yet, which may hold anything there."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def list_launchable_versions() -> QuerySet[ModelVersion]:
    """Versions that the pool can start, by model and name; not retired ones."""
    versions = ModelVersion.objects.exclude(artefact_uri="").exclude(state=VersionState.RETIRED)
    return versions.select_related("model").order_by("model__name", "name")
