"""The pool's control API: views parse, call one service, render."""

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from django.core.exceptions import ObjectDoesNotExist
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.generics import ListAPIView, RetrieveAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from core.api.bodies import parse_body
from core.api.paging import NewestFirst
from core.api.request_ids import request_id_of
from gpupool import selectors, services
from gpupool.api.permissions import PlatformRolePermission
from gpupool.api.serializers import (
    AttachSerializer,
    EngineSerializer,
    EnginesSerializer,
    EngineSwitchSerializer,
    InstanceSerializer,
    StopSerializer,
)
from gpupool.engines.registry import UnknownEngine, broken_plugins
from gpupool.models import Instance
from tenants.actor import Actor, user_actor
from tenants.models import User
from tenants.services import InvalidInput

T = TypeVar("T")


def _actor(request: Request) -> Actor:
    assert isinstance(request.user, User)  # the permission class let no other in
    return user_actor(request.user.pk, request_id=request_id_of(request))


def _parsed(serializer: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    return parse_body(serializer, request.data)


def _served(call: Callable[[], T], *, renamed: dict[str, str] | None = None) -> T:
    """The service's result; what it refuses becomes 400 naming the field, what it misses 404."""
    try:
        return call()
    except InvalidInput as error:
        raise ValidationError({(renamed or {}).get(error.field, error.field): [error.message]}) from error
    except (ObjectDoesNotExist, UnknownEngine) as error:
        raise NotFound from error


class _PoolView(APIView):
    permission_classes = (PlatformRolePermission,)


class EngineListView(_PoolView):
    @extend_schema(operation_id="engines_list", responses={200: EnginesSerializer})
    def get(self, request: Request) -> Response:
        """Every engine that this installation has, with what it can do; and those that could not be loaded."""
        told = EnginesSerializer({"results": selectors.list_engines(), "broken": broken_plugins()})
        return Response(told.data)


class EngineView(_PoolView):
    @extend_schema(responses={200: EngineSerializer})
    def get(self, request: Request, name: str) -> Response:
        return Response(_engine(name))

    @extend_schema(request=EngineSwitchSerializer, responses={200: EngineSerializer})
    def patch(self, request: Request, name: str) -> Response:
        """Switch it on or off: its endpoints come into or leave the routing within a second, what runs runs on."""
        values = _parsed(EngineSwitchSerializer, request)
        _served(lambda: services.set_engine_enabled(name, values["enabled"], actor=_actor(request)))
        return Response(_engine(name))


def _engine(name: str) -> dict[str, Any]:
    for engine in selectors.list_engines():
        if engine.name == name:
            told: dict[str, Any] = EngineSerializer(engine).data
            return told
    raise NotFound


class InstanceListView(_PoolView, ListAPIView[Instance]):
    serializer_class = InstanceSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Instance]:
        return selectors.list_instances()

    @extend_schema(request=AttachSerializer, responses={200: InstanceSerializer, 201: InstanceSerializer})
    def post(self, request: Request) -> Response:
        """Attach an engine that already runs. It takes requests once the controller's probe has found it."""
        values = _parsed(AttachSerializer, request)
        attached = _served(
            lambda: services.attach_engine(
                values["url"],
                engine=values["engine"],
                model_name=values["model"],
                served_name=values["served_name"],
                version_name=values["version"],
                credential_variable=values["credential_variable"],
                slots=values["slots"],
                actor=_actor(request),
            ),
            renamed={"name": "model"},
        )
        code = status.HTTP_201_CREATED if attached.created else status.HTTP_200_OK
        return Response(InstanceSerializer(attached.instance).data, status=code)


class InstanceView(_PoolView, RetrieveAPIView[Instance]):
    serializer_class = InstanceSerializer
    lookup_url_kwarg = "instance_id"

    def get_queryset(self) -> QuerySet[Instance]:
        return selectors.list_instances()


class InstanceStopView(_PoolView):
    @extend_schema(request=StopSerializer, responses={202: InstanceSerializer})
    def post(self, request: Request, instance_id: UUID) -> Response:
        """Take it out of routing, let its requests finish, stop it; an attached one is let go."""
        values = _parsed(StopSerializer, request)
        instance = _served(lambda: services.stop_instance(instance_id, actor=_actor(request), reason=values["reason"]))
        return Response(InstanceSerializer(instance).data, status=status.HTTP_202_ACCEPTED)
