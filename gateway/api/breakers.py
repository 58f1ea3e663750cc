"""The control API of circuit breakers: which instances relays send no requests, since when and why."""

from typing import Any, Final
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.filters import Query
from gateway.policies.breaker import BreakerState, Opened
from gateway.reads.breakers import read_breakers
from tenants.api.access import platform_access
from tenants.api.base import ControlView
from tenants.policies.roles import Action, Object

MOST_LISTED: Final = 1000
_STATES: Final = [BreakerState.OPEN.value, BreakerState.HALF_OPEN.value]


class BreakerSerializer(serializers.Serializer[Any]):
    """An instance that one process sends no requests; others may well reach it."""

    instance_id = serializers.UUIDField()
    process = serializers.CharField(help_text="Whose it is: door, host and process id.")
    state = serializers.ChoiceField(choices=_STATES, help_text="half_open: one request is its trial now.")
    why = serializers.ChoiceField(
        choices=[one.value for one in Opened],
        help_text="What opened it last: refused: a connection was; failed: half of the last 20 requests there; trial: "
        "the request that tried it again.",
    )
    since = serializers.DateTimeField(help_text="When it opened first, however often it was tried since.")
    trial_at = serializers.DateTimeField(
        allow_null=True, help_text="From when on the next request is its trial; null: one is under way."
    )
    open_until = serializers.DateTimeField(
        help_text="When that would be if others could be asked meanwhile: the same, or later."
    )
    unasked = serializers.BooleanField(
        help_text="Its time has been over for 15 s, and no request has come that could be the trial."
    )


class BreakersSerializer(serializers.Serializer[Any]):
    """Breakers that are open, the longest first. What is not in the list is counted."""

    known = serializers.BooleanField(help_text="false: what relays tell cannot be read now, and the list is empty.")
    breakers = BreakerSerializer(many=True)
    more = serializers.IntegerField(
        help_text="Open ones that are not in the list, of any instance: a process names 200, and the list has 1,000."
    )
    unread_processes = serializers.IntegerField(
        help_text="Processes that may tell more: the 200 that told last are asked, and what one of another version "
        "tells may not be understood."
    )


class BreakerQuery(Query):
    instance = serializers.UUIDField(required=False, help_text="id of an instance: of it alone.")


class BreakersView(ControlView):
    """Circuit breakers that are open."""

    query_class = BreakerQuery

    @extend_schema(operation_id="breakers", parameters=[BreakerQuery], responses=BreakersSerializer)
    def get(self, request: Request) -> Response:
        """As each relay process has told within the last 15 s; for platform roles."""
        platform_access(request, Action.VIEW, Object.POOL)
        instance_id: UUID | None = self.query.get("instance")
        found, now = read_breakers(instance_id), timezone.now()
        listed = [
            {
                "instance_id": one.instance_id,
                "process": one.process,
                "state": BreakerState.HALF_OPEN if one.trial_at is None else BreakerState.OPEN,
                "why": one.why,
                "since": one.since,
                "trial_at": one.trial_at,
                "open_until": one.open_until,
                "unasked": one.is_unasked(now),
            }
            for one in found.left_alone[:MOST_LISTED]
        ]
        told = {
            "known": found.known,
            "breakers": listed,
            "more": len(found.left_alone) - len(listed) + sum(one.count for one in found.untold),
            "unread_processes": found.unread,
        }
        return Response(BreakersSerializer(told).data)
