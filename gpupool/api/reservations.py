"""The control API of reservations: devices and memory that tenants have a right to."""

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.etags import check_match, tagged
from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from gpupool.api.base import PoolView
from gpupool.models import Reservation
from gpupool.policies.version_needs import LARGEST_BYTES, LONGEST_TAG
from gpupool.services.reservations import (
    MOST_DEVICES,
    change_reservation,
    create_reservation,
    delete_reservation,
    lock_reservation,
)


class ReservationSerializer(serializers.ModelSerializer[Reservation]):
    """What is kept for a tenant, of devices with a tag; an empty tag means any GPU."""

    class Meta:
        model = Reservation
        fields = ("id", "tenant_id", "gpu_tag", "devices", "memory_bytes", "lendable", "created_at")
        read_only_fields = fields


class ReservationChangeSerializer(serializers.Serializer[Any]):
    devices = serializers.IntegerField(required=False, min_value=0, max_value=MOST_DEVICES)
    memory_bytes = serializers.IntegerField(required=False, min_value=0, max_value=LARGEST_BYTES)
    lendable = serializers.BooleanField(
        required=False, help_text="Others may use what lies idle, and go when the tenant needs it."
    )


class NewReservationSerializer(ReservationChangeSerializer):
    tenant_id = serializers.UUIDField()
    gpu_tag = serializers.CharField(required=False, default="", allow_blank=True, max_length=LONGEST_TAG)


class ReservationQuery(Query):
    tenant_id = serializers.UUIDField(required=False)
    gpu_tag = serializers.CharField(required=False, max_length=LONGEST_TAG)


def _told(reservation: Reservation) -> dict[str, Any]:
    return dict(ReservationSerializer(reservation).data)


class ReservationListView(IdempotentCreate, PoolView, ListAPIView[Reservation]):
    """All tenants' reservations."""

    serializer_class = ReservationSerializer
    pagination_class = NewestFirst
    query_class = ReservationQuery
    queryset = Reservation.objects.none()

    def get_queryset(self) -> QuerySet[Reservation]:
        return Reservation.objects.filter(**self.query).order_by("-id")

    @extend_schema(request=NewReservationSerializer, responses={201: ReservationSerializer})
    def post(self, request: Request) -> Response:
        """Keep devices, or memory of them, for a tenant."""
        values = self.parsed(NewReservationSerializer)
        reservation = create_reservation(values.pop("tenant_id"), actor=self.actor, **values)
        return tagged(_told(reservation), status=status.HTTP_201_CREATED)


class ReservationView(PoolView):
    """One reservation."""

    conditional = ("PATCH", "DELETE")

    @extend_schema(responses=ReservationSerializer)
    def get(self, request: Request, reservation_id: UUID) -> Response:
        """What is kept, and for whom."""
        return tagged(_told(_found(reservation_id)))

    @extend_schema(request=ReservationChangeSerializer, responses=ReservationSerializer)
    def patch(self, request: Request, reservation_id: UUID) -> Response:
        """Keep more or less; what runs, runs on."""
        values = self.parsed(ReservationChangeSerializer)
        with transaction.atomic():
            check_match(request, _told(_found(reservation_id, lock=True)))
            reservation = change_reservation(reservation_id, actor=self.actor, **values)
        return tagged(_told(reservation))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, reservation_id: UUID) -> Response:
        """Give the right up."""
        with transaction.atomic():
            check_match(request, _told(_found(reservation_id, lock=True)))
            delete_reservation(reservation_id, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _found(reservation_id: UUID, *, lock: bool = False) -> Reservation:
    try:
        return lock_reservation(reservation_id) if lock else Reservation.objects.get(pk=reservation_id)
    except Reservation.DoesNotExist as error:
        raise NotFound from error
