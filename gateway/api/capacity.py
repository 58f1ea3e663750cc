"""The control API of what a request for more would mean for capacity."""

from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from gateway.policies.capacity import Verdict
from gateway.services.capacity_impact import impact_of
from tenants.api.access import platform_access
from tenants.api.base import ControlView
from tenants.models import AccessRequest
from tenants.policies.roles import Action, Object
from tenants.reads.notices import get_request


class PromisedSerializer(serializers.Serializer[Any]):
    """What all tenants with access may use together."""

    concurrency = serializers.IntegerField(help_text="Requests at once, of tenants that are limited.")
    without_concurrency = serializers.IntegerField(help_text="Tenants that are not limited in it.")
    tokens_per_second = serializers.FloatField(help_text="Of tenants that are limited.")
    without_tokens = serializers.IntegerField(help_text="Tenants that are not limited in it.")


class ModelImpactSerializer(serializers.Serializer[Any]):
    """One model, before and after."""

    model = serializers.CharField()
    instances = serializers.IntegerField(help_text="Ready ones.")
    slots = serializers.IntegerField(allow_null=True, help_text="Requests at once that they take; null: not known.")
    peak_concurrency = serializers.FloatField(
        help_text="In the busiest minute of the last day, or the busiest hour of the last seven."
    )
    peak_tokens_per_second = serializers.FloatField(help_text="The same.")
    mean_tokens_per_second = serializers.FloatField(help_text="Of the last seven days.")
    before = PromisedSerializer()
    after = PromisedSerializer()
    verdict = serializers.ChoiceField(choices=[verdict.value for verdict in Verdict])


class ImpactSerializer(serializers.Serializer[Any]):
    models = ModelImpactSerializer(many=True)


class ImpactView(ControlView):
    """What approval would mean."""

    @extend_schema(responses=ImpactSerializer)
    def get(self, request: Request, request_id: UUID) -> Response:
        """For each model that the request is about: slots, recent use, and what is promised before and after."""
        platform_access(request, Action.VIEW, Object.REQUEST)
        try:
            found = impact_of(get_request(request_id), now=timezone.now())
        except AccessRequest.DoesNotExist as error:
            raise NotFound from error
        models = [
            {**asdict(one.load), "before": asdict(one.before), "after": asdict(one.after), "verdict": one.verdict.value}
            for one in found
        ]
        return Response(ImpactSerializer({"models": models}).data)
