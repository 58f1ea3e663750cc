"""The control API of engines: views parse, call one service, render."""

from collections.abc import Callable
from typing import Any, TypeVar

from django.core.exceptions import ObjectDoesNotExist
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from core.api.bodies import parse_body
from core.api.request_ids import request_id_of
from gpupool import selectors, services
from gpupool.api.permissions import PlatformRolePermission
from gpupool.api.serializers import (
    EngineSerializer,
    EnginesSerializer,
    EngineSwitchSerializer,
)
from gpupool.engines.registry import UnknownEngine, broken_plugins
from tenants.actor import Actor, user_actor
from tenants.models import User
from tenants.services import InvalidInput

T = TypeVar("T")


def _actor(request: Request) -> Actor:
    assert isinstance(request.user, User)  # the permission class let no other in
    return user_actor(request.user.pk, request_id=request_id_of(request))


def _parsed(serializer: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    return parse_body(serializer, request.data)


def _served(call: Callable[[], T]) -> T:
    """The service's result; what it refuses becomes 400 naming the field, what it misses 404."""
    try:
        return call()
    except InvalidInput as error:
        raise ValidationError({error.field: [error.message]}) from error
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
