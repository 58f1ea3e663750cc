"""The control API of the catalogue: models, their other names, and adapters. Versions are in gpupool.api.versions."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from gpupool import services
from gpupool.api.base import PoolView
from gpupool.models import Adapter, AdapterState, Model, ModelAlias
from gpupool.policies.adapter import LARGEST_RANK
from gpupool.reads import catalogue
from gpupool.services.adapters import LARGEST_ALPHA, LARGEST_BYTES, MOST_MODULES

_HEX = "^[0-9a-f]{64}$"


class ModelSerializer(serializers.ModelSerializer[Model]):
    """A name at the door, and what else it is called there."""

    aliases = serializers.SerializerMethodField()

    class Meta:
        model = Model
        fields = ("id", "name", "aliases", "description", "tenant_id", "created_at")
        read_only_fields = fields

    def get_aliases(self, model: Model) -> list[str]:
        return sorted(alias.name for alias in model.aliases.all())


class NewModelSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=200)
    description = serializers.CharField(max_length=10_000, required=False, default="", allow_blank=True)
    tenant_id = serializers.UUIDField(
        required=False, allow_null=True, default=None, help_text="Private to this tenant; nobody else learns of it."
    )


class AliasSerializer(serializers.ModelSerializer[ModelAlias]):
    """Another name of a model. Answers carry it when it was asked for; limits, grants and prices go by the model's."""

    model = serializers.CharField(source="model.name", read_only=True)

    class Meta:
        model = ModelAlias
        fields = ("id", "name", "model", "created_at")
        read_only_fields = fields


class NewAliasSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=200)


class AdapterSerializer(serializers.ModelSerializer[Adapter]):
    """Weights that go on top of one version."""

    model = serializers.CharField(source="version.model.name", read_only=True)
    version = serializers.CharField(source="version.name", read_only=True)
    version_id = serializers.UUIDField(read_only=True)
    job_id = serializers.UUIDField(read_only=True, allow_null=True, help_text="The training that it came of.")
    target_modules = serializers.ListField(child=serializers.CharField(), read_only=True)

    class Meta:
        model = Adapter
        fields = (
            "id", "name", "model", "version", "version_id", "tenant_id", "artefact_uri", "sha256", "size_bytes", "rank",
            "alpha", "target_modules", "state", "job_id", "created_at",
        )  # fmt: skip
        read_only_fields = fields


class NewAdapterSerializer(serializers.Serializer[Any]):
    """What `manage.py manifest --adapter PATH` prints, with a name."""

    name = serializers.CharField(max_length=400)
    artefact_uri = serializers.CharField(max_length=500, help_text="package:MODULE/FILE or file:///PATH, on nodes.")
    sha256 = serializers.RegexField(_HEX, help_text="Of the weights' file.")
    size_bytes = serializers.IntegerField(min_value=1, max_value=LARGEST_BYTES)
    rank = serializers.IntegerField(min_value=1, max_value=LARGEST_RANK)
    alpha = serializers.FloatField(required=False, default=0, min_value=0, max_value=LARGEST_ALPHA)
    target_modules = serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, default=list, max_length=MOST_MODULES
    )
    tenant_id = serializers.UUIDField(required=False, allow_null=True, default=None)


class ModelQuery(Query):
    name = serializers.CharField(required=False, max_length=200, help_text="A model's name or other name.")
    tenant_id = serializers.UUIDField(required=False, help_text="Private to this tenant.")


class AdapterQuery(Query):
    version = serializers.UUIDField(required=False)
    tenant_id = serializers.UUIDField(required=False)
    state = serializers.ChoiceField(choices=AdapterState.choices, required=False)


class ModelListView(IdempotentCreate, PoolView, ListAPIView[Model]):
    """Models by the names that applications use."""

    serializer_class = ModelSerializer
    pagination_class = NewestFirst
    query_class = ModelQuery
    queryset = Model.objects.none()

    def get_queryset(self) -> QuerySet[Model]:
        return catalogue.list_models(**self.query)

    @extend_schema(request=NewModelSerializer, responses={201: ModelSerializer})
    def post(self, request: Request) -> Response:
        """A new name at the doors; it is there once a version serves."""
        values = self.parsed(NewModelSerializer)
        model = services.create_model(values.pop("name"), actor=self.actor, **values)
        return Response(ModelSerializer(model).data, status=status.HTTP_201_CREATED)


class ModelView(PoolView):
    """One model."""

    @extend_schema(responses=ModelSerializer)
    def get(self, request: Request, model_id: UUID) -> Response:
        return Response(ModelSerializer(catalogue.list_models().get(pk=model_id)).data)


class AliasListView(IdempotentCreate, PoolView, ListAPIView[ModelAlias]):
    """A model's other names."""

    serializer_class = AliasSerializer
    pagination_class = NewestFirst
    queryset = ModelAlias.objects.none()

    def get_queryset(self) -> QuerySet[ModelAlias]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no model
            return ModelAlias.objects.none()
        return catalogue.list_aliases(Model.objects.get(pk=self.kwargs["model_id"]).pk)

    @extend_schema(request=NewAliasSerializer, responses={201: AliasSerializer})
    def post(self, request: Request, model_id: UUID) -> Response:
        """Known at the doors within a second. No model and no other name may be called so."""
        alias = services.create_alias(model_id, self.parsed(NewAliasSerializer)["name"], actor=self.actor)
        return Response(AliasSerializer(alias).data, status=status.HTTP_201_CREATED)


class AliasView(PoolView):
    """One of them."""

    @extend_schema(responses={204: None})
    def delete(self, request: Request, alias_id: UUID) -> Response:
        """Whoever still calls it is told that there is no such model, within a second."""
        services.delete_alias(alias_id, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


class AdapterListView(PoolView, ListAPIView[Adapter]):
    """Adapters of all versions and tenants."""

    serializer_class = AdapterSerializer
    pagination_class = NewestFirst
    query_class = AdapterQuery
    queryset = Adapter.objects.none()

    def get_queryset(self) -> QuerySet[Adapter]:
        return catalogue.list_adapters(**self.query)


class VersionAdapterView(IdempotentCreate, PoolView):
    """Adapters on top of a version."""

    @extend_schema(request=NewAdapterSerializer, responses={201: AdapterSerializer})
    def post(self, request: Request, version_id: UUID) -> Response:
        """Register an adapter that lies on the nodes. Its rank has to be one that the version's engine takes."""
        adapter = services.register_adapter(version_id, actor=self.actor, **self.parsed(NewAdapterSerializer))
        return Response(AdapterSerializer(adapter).data, status=status.HTTP_201_CREATED)


class AdapterRetireView(PoolView):
    """One adapter's end."""

    @extend_schema(request=None, responses={200: AdapterSerializer})
    def post(self, request: Request, adapter_id: UUID) -> Response:
        """Not to be used any more; its files stay."""
        return Response(AdapterSerializer(services.retire_adapter(adapter_id, actor=self.actor)).data)
