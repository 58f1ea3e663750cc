"""The control API of versions: described, admitted, served, switched to, retired."""

import json
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.bodies import JsonBodyParser, parse_body
from core.api.etags import check_match, tagged
from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from gpupool import services
from gpupool.api.base import PoolView
from gpupool.api.resources import take_resources
from gpupool.api.version_serializers import (
    AdmitSerializer,
    CardSerializer,
    LineageSerializer,
    ManifestSerializer,
    NewVersionSerializer,
    ReplicasSerializer,
    SwitchSerializer,
    VersionChangeSerializer,
    VersionSerializer,
)
from gpupool.api.yaml import MEDIA_TYPE, YamlParser
from gpupool.models import ModelVersion, VersionState
from gpupool.policies.version_needs import VersionNeeds
from gpupool.reads import catalogue
from gpupool.services.admission import card_faults
from gpupool.services.catalogue import lock_version

_LIVE: Final = ("last_stable_at", "state_reason")
"""What changes by itself, and is nobody's edit."""


class VersionQuery(Query):
    model = serializers.CharField(required=False, max_length=200)
    state = serializers.ChoiceField(choices=VersionState.choices, required=False)
    tenant_id = serializers.UUIDField(required=False, help_text="That tenant's own versions.")


def _told(version: ModelVersion) -> dict[str, Any]:
    return dict(VersionSerializer(version).data)


def _needs(values: dict[str, Any]) -> VersionNeeds:
    """Takes those of the values that are needs."""
    names = VersionNeeds.__dataclass_fields__.keys() & values.keys()
    return VersionNeeds(**{name: values.pop(name) for name in names})


class VersionListView(IdempotentCreate, PoolView, ListAPIView[ModelVersion]):
    """Versions of all models."""

    serializer_class = VersionSerializer
    pagination_class = NewestFirst
    query_class = VersionQuery
    queryset = ModelVersion.objects.none()

    def get_queryset(self) -> QuerySet[ModelVersion]:
        return catalogue.list_versions(**self.query)

    @extend_schema(request=NewVersionSerializer, responses={201: VersionSerializer})
    def post(self, request: Request) -> Response:
        """It serves at once, or is a draft: where that is asked for, or this installation admits versions first."""
        values = self.parsed(NewVersionSerializer)
        take_resources(values)
        model = catalogue.find_model(values.pop("model"))
        if model is None:
            raise ValidationError({"model": ["There is no such model."]})
        state = VersionState.DRAFT if values.pop("draft") else None
        version = services.create_version(model, actor=self.actor, needs=_needs(values), state=state, **values)
        return tagged(_told(version), without=_LIVE, status=status.HTTP_201_CREATED)


class VersionView(PoolView):
    """One version."""

    conditional = ("PATCH",)

    @extend_schema(responses=VersionSerializer)
    def get(self, request: Request, version_id: UUID) -> Response:
        return tagged(_told(catalogue.get_version(version_id)), without=_LIVE)

    @extend_schema(request=VersionChangeSerializer, responses=VersionSerializer)
    def patch(self, request: Request, version_id: UUID) -> Response:
        """Describe a draft otherwise; 409 for what is none any more."""
        values = self.parsed(VersionChangeSerializer, partial=True)
        with transaction.atomic():
            check_match(request, _told(lock_version(version_id)), without=_LIVE)
            version = services.change_version(version_id, actor=self.actor, **values)
        return tagged(_told(version), without=_LIVE)


class VersionReplicasView(PoolView):
    @extend_schema(request=ReplicasSerializer, responses={200: VersionSerializer})
    def put(self, request: Request, version_id: UUID) -> Response:
        """How many instances the controller keeps."""
        values = self.parsed(ReplicasSerializer)
        return Response(_told(services.set_replicas(version_id, values["replicas"], actor=self.actor)))


class VersionAdmitView(PoolView):
    @extend_schema(request=AdmitSerializer, responses={200: VersionSerializer})
    def post(self, request: Request, version_id: UUID) -> Response:
        """Look at manifest and card, and at what is sent with this. 409 tells, in `reasons`, all that is missing."""
        values = self.parsed(AdmitSerializer)
        bundle = values["bundle"]
        version = services.admit_version(
            version_id,
            actor=self.actor,
            bundle=None if bundle is None else json.dumps(bundle).encode(),
            sbom=values["sbom"],
        )
        return Response(_told(version))


class VersionReopenView(PoolView):
    @extend_schema(request=None, responses={200: VersionSerializer})
    def post(self, request: Request, version_id: UUID) -> Response:
        """A draft again; what its admission found is forgotten."""
        return Response(_told(services.reopen_version(version_id, actor=self.actor)))


class VersionRetireView(PoolView):
    @extend_schema(request=None, responses={200: VersionSerializer})
    def post(self, request: Request, version_id: UUID) -> Response:
        """No more requests; the controller drains its instances."""
        return Response(_told(services.retire_version(version_id, actor=self.actor)))


class VersionServeView(PoolView):
    @extend_schema(request=None, responses={200: VersionSerializer})
    def post(self, request: Request, version_id: UUID) -> Response:
        """Serve (again), with the replicas that were wanted."""
        return Response(_told(services.serve_version(version_id, actor=self.actor)))


class VersionSwitchView(PoolView):
    @extend_schema(request=SwitchSerializer, responses={200: VersionSerializer})
    def post(self, request: Request, version_id: UUID) -> Response:
        """Serve this version and retire another one of the model, in one step: no request finds neither or both.

        409 while no instance of this one is ready.
        """
        old = self.parsed(SwitchSerializer)["instead_of"]
        return Response(_told(services.switch_version(version_id, instead_of=old, actor=self.actor)))


class VersionCardView(PoolView):
    """A version's model card."""

    parser_classes = (JsonBodyParser, YamlParser)
    conditional = ("PUT",)

    @extend_schema(responses=CardSerializer)
    def get(self, request: Request, version_id: UUID) -> Response:
        """The card, and what admission would say against it."""
        return self._tagged(catalogue.get_version(version_id))

    @extend_schema(
        request={"application/json": OpenApiTypes.OBJECT, MEDIA_TYPE: OpenApiTypes.OBJECT}, responses=CardSerializer
    )
    def put(self, request: Request, version_id: UUID) -> Response:
        """model-card.yaml as it is, or the same as JSON; of a draft. It need not be complete yet: see `faults`."""
        card = request.data
        if not isinstance(card, dict):
            raise ValidationError({"non_field_errors": ["A model card is an object."]})
        parse_body(serializers.Serializer, card)  # texts that can be stored
        with transaction.atomic():
            check_match(request, self._shown(lock_version(version_id)))
            version = services.change_version(version_id, actor=self.actor, card=dict(card))
        return self._tagged(version)

    def _shown(self, version: ModelVersion) -> dict[str, Any]:
        return dict(CardSerializer({"card": version.card, "faults": card_faults(version)}).data)

    def _tagged(self, version: ModelVersion) -> Response:
        return tagged(self._shown(version))


class VersionManifestView(PoolView):
    """Which files a version has."""

    conditional = ("PUT",)

    @extend_schema(responses=ManifestSerializer)
    def get(self, request: Request, version_id: UUID) -> Response:
        """404 for a version without one."""
        version = catalogue.get_version(version_id)
        if not version.manifest:
            raise ModelVersion.DoesNotExist
        return tagged(version.manifest)

    @extend_schema(request=ManifestSerializer, responses=ManifestSerializer)
    def put(self, request: Request, version_id: UUID) -> Response:
        """What `manage.py manifest PATH` prints; of a draft. Nodes hold their files against it before a load."""
        values = self.parsed(ManifestSerializer)
        with transaction.atomic():
            check_match(request, lock_version(version_id).manifest)
            version = services.change_version(version_id, actor=self.actor, manifest=values)
        return tagged(version.manifest)


class VersionLineageView(PoolView):
    @extend_schema(responses=LineageSerializer)
    def get(self, request: Request, version_id: UUID) -> Response:
        """What it is made of, and what was made on top of it."""
        return Response(LineageSerializer(catalogue.lineage(catalogue.get_version(version_id))).data)
