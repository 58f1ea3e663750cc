"""The control API of objectives: of the installation, and of one tenant."""

from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.etags import check_match, tagged
from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from gateway.models import Objective
from gateway.policies.slo import MOST_WINDOW_DAYS, Kind
from gateway.policies.slo_alerts import Severity
from gateway.reads.slo import Standing, list_objectives, new_before, read_standings
from gateway.services.objectives import (
    change_objective,
    create_objective,
    create_tier_objectives,
    delete_objective,
    lock_objective,
)
from gpupool.models import ModelVersion
from tenants.api.access import platform_access, tenant_access
from tenants.api.base import ControlView
from tenants.models import SlaTier, Tenant
from tenants.policies.roles import Action, Object
from tenants.services.errors import InvalidInput

_KINDS = [kind.value for kind in Kind]
SEVERITIES = [one.value for one in Severity]
_TARGET_HELP = (
    "A share, e.g. 0.99. At 0.93 or less even a total outage burns too slowly for the page by 1 h & 5 m, "
    "at 0.83 or less for any page."
)


class ObjectiveSerializer(serializers.ModelSerializer[Objective]):
    """So large a share of requests is good, over a rolling window."""

    tenant = serializers.SlugField(source="tenant.slug", read_only=True, allow_null=True, default=None)
    kind = serializers.ChoiceField(choices=_KINDS, read_only=True)
    tier = serializers.ChoiceField(choices=SlaTier.choices, allow_blank=True, read_only=True)
    version = serializers.UUIDField(source="version_id", read_only=True, allow_null=True)

    class Meta:
        model = Objective
        fields = (
            "id", "name", "kind", "target", "threshold_seconds", "window_days", "model", "tenant", "tier", "version",
            "tenants_own", "enabled", "created_at",
        )  # fmt: skip
        read_only_fields = fields


class ObjectiveChangeSerializer(serializers.Serializer[Any]):
    """What can be changed; whose requests of which tenant are counted cannot."""

    name = serializers.CharField(required=False, max_length=120)
    kind = serializers.ChoiceField(choices=_KINDS, required=False)
    target = serializers.FloatField(required=False, min_value=0.5, max_value=0.99999, help_text=_TARGET_HELP)
    threshold_seconds = serializers.FloatField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=3600,
        help_text="A bound of the histogram, or the answer names its neighbours; null for availability.",
    )
    window_days = serializers.IntegerField(required=False, min_value=1, max_value=MOST_WINDOW_DAYS)
    model = serializers.CharField(required=False, allow_blank=True, max_length=200, help_text="Empty: all models.")
    enabled = serializers.BooleanField(required=False)


class NewTenantObjectiveSerializer(ObjectiveChangeSerializer):
    name = serializers.CharField(max_length=120)
    kind = serializers.ChoiceField(choices=_KINDS)
    target = serializers.FloatField(min_value=0.5, max_value=0.99999, help_text=_TARGET_HELP)


class PlatformObjectiveChangeSerializer(ObjectiveChangeSerializer):
    tier = serializers.ChoiceField(choices=SlaTier.choices, required=False, allow_blank=True)
    version = serializers.UUIDField(required=False, allow_null=True, help_text="Only this release's requests.")


class NewObjectiveSerializer(NewTenantObjectiveSerializer, PlatformObjectiveChangeSerializer):
    tenant = serializers.SlugField(required=False, allow_null=True, max_length=63, help_text="Only its requests.")


class ObjectiveQuery(Query):
    kind = serializers.ChoiceField(choices=_KINDS, required=False)
    model = serializers.CharField(required=False, max_length=200)
    enabled = serializers.BooleanField(required=False)


class PlatformObjectiveQuery(ObjectiveQuery):
    tenant = serializers.SlugField(required=False, max_length=63)
    tier = serializers.ChoiceField(choices=SlaTier.choices, required=False)


class _CountedSerializer(serializers.Serializer[Any]):
    total = serializers.IntegerField()
    good = serializers.IntegerField()


class _BudgetSerializer(serializers.Serializer[Any]):
    allowed = serializers.FloatField(help_text="Requests that may go wrong in the whole window.")
    bad = serializers.IntegerField()
    left = serializers.FloatField()
    remaining = serializers.FloatField(allow_null=True, help_text="A share; below 0 where it is overspent.")
    even_pace = serializers.FloatField(allow_null=True, help_text="What would remain at a burn rate of 1 so far.")


class _PairSerializer(serializers.Serializer[Any]):
    pair = serializers.CharField()
    severity = serializers.ChoiceField(choices=SEVERITIES)
    threshold = serializers.FloatField()
    long_burn = serializers.FloatField(allow_null=True)
    short_burn = serializers.FloatField(allow_null=True)
    burning = serializers.BooleanField(allow_null=True)


class StatusSerializer(serializers.Serializer[Any]):
    """How an objective stands; null is unknown: without requests nothing is attained, and nothing missed."""

    as_of = serializers.DateTimeField()
    counted = serializers.BooleanField(help_text="False: its window is not counted yet.")
    new_before = serializers.IntegerField(
        allow_null=True,
        help_text="New objectives that are counted before it; null where it is counted already, is switched off, or "
        "counting it took too long.",
    )
    count_failed_at = serializers.DateTimeField(
        allow_null=True, help_text="Counting its window took too long then: it is tried again, after other new ones."
    )
    window = _CountedSerializer()
    attained = serializers.FloatField(allow_null=True)
    budget = _BudgetSerializer()
    burn_rates = serializers.DictField(child=serializers.FloatField(allow_null=True), help_text="By seconds.")
    pairs = _PairSerializer(many=True)
    exhausted_in_seconds = serializers.FloatField(allow_null=True, help_text="At the present rate; null: it lasts.")


def scope_of(request: Request, slug: str | None, action: Action) -> Tenant | None:
    """The tenant of the address, None for the platform. Raises NotFound, PermissionDenied."""
    if slug is None:
        platform_access(request, action, Object.OBJECTIVE)
        return None
    return tenant_access(request, slug, action, Object.OBJECTIVE).tenant


def _with_version(values: dict[str, Any]) -> dict[str, Any]:
    """As the services take them. Raises InvalidInput for a release that is not there."""
    if "version" in values:
        version_id = values["version_id"] = values.pop("version")
        if version_id is not None and not ModelVersion.objects.filter(pk=version_id).exists():
            raise InvalidInput("version", "There is no such release.")
    return values


class _ObjectivePages(IdempotentCreate, ControlView, ListAPIView[Objective]):
    serializer_class = ObjectiveSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Objective]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no tenant
            return Objective.objects.none()
        rows = list_objectives(scope_of(self.request, self.kwargs.get("slug"), Action.VIEW))
        filters = dict(self.query)
        if "tenant" in filters:
            filters["tenant__slug"] = filters.pop("tenant")
        return rows.filter(**filters)


class ObjectiveListView(_ObjectivePages):
    """Objectives of the installation, those of tenants among them; for platform roles."""

    query_class = PlatformObjectiveQuery

    @extend_schema(request=NewObjectiveSerializer, responses={201: ObjectiveSerializer})
    def post(self, request: Request) -> Response:
        """Make one; its window is counted within seconds."""
        scope_of(request, None, Action.CREATE)
        values = _with_version(self.parsed(NewObjectiveSerializer))
        slug = values.pop("tenant", None)
        tenant = None if slug is None else Tenant.objects.filter(slug=slug).first()
        if slug is not None and tenant is None:
            raise InvalidInput("tenant", "There is no such tenant.")
        made = create_objective(actor=self.actor, tenant=tenant, **values)
        return tagged(ObjectiveSerializer(made).data, status=status.HTTP_201_CREATED)


class TierObjectivesView(IdempotentCreate, ControlView):
    """What every SLA tier promises, as objectives over its tenants' requests."""

    @extend_schema(request=None, responses={200: ObjectiveSerializer(many=True)})
    def post(self, request: Request) -> Response:
        """Make those that are not there yet; answers with these."""
        scope_of(request, None, Action.CREATE)
        return Response(ObjectiveSerializer(create_tier_objectives(actor=self.actor), many=True).data)


class TenantObjectiveListView(_ObjectivePages):
    """Objectives about a tenant's requests: the platform's, and those that it set up itself."""

    query_class = ObjectiveQuery

    @extend_schema(request=NewTenantObjectiveSerializer, responses={201: ObjectiveSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Set one up over the tenant's own requests; its window is counted within seconds."""
        tenant = scope_of(request, slug, Action.CREATE)
        values = self.parsed(NewTenantObjectiveSerializer)
        made = create_objective(actor=self.actor, tenant=tenant, tenants_own=True, **values)
        return tagged(ObjectiveSerializer(made).data, status=status.HTTP_201_CREATED)


class _OneObjective(ControlView):
    def objective_for(self, action: Action, objective_id: UUID, slug: str | None, *, lock: bool = False) -> Objective:
        """Raises NotFound for another tenant's, PermissionDenied for changes by a tenant to what is the platform's."""
        tenant = scope_of(self.request, slug, action)
        try:
            found = lock_objective(objective_id) if lock else list_objectives().get(pk=objective_id)
        except Objective.DoesNotExist as error:
            raise NotFound from error
        if tenant is not None and found.tenant_id != tenant.pk:
            raise NotFound
        if tenant is not None and action is not Action.VIEW and not found.tenants_own:
            raise PermissionDenied("The platform promises this: only its operators change it.")
        return found


class ObjectiveView(_OneObjective):
    """One objective."""

    conditional = ("PATCH", "DELETE")

    @extend_schema(responses=ObjectiveSerializer)
    def get(self, request: Request, objective_id: UUID, slug: str | None = None) -> Response:
        return tagged(ObjectiveSerializer(self.objective_for(Action.VIEW, objective_id, slug)).data)

    @extend_schema(request=PlatformObjectiveChangeSerializer, responses=ObjectiveSerializer)
    def patch(self, request: Request, objective_id: UUID, slug: str | None = None) -> Response:
        """Where it promises something else from now on, its window is counted anew and its open alerts end."""
        scope_of(request, slug, Action.CHANGE)  # who may not is told so before what is wrong with the body
        wanted = PlatformObjectiveChangeSerializer if slug is None else ObjectiveChangeSerializer
        values = _with_version(self.parsed(wanted))
        with transaction.atomic():
            found = self.objective_for(Action.CHANGE, objective_id, slug, lock=True)
            check_match(request, ObjectiveSerializer(found).data)
            changed = change_objective(found.pk, actor=self.actor, now=timezone.now(), **values)
        return tagged(ObjectiveSerializer(changed).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, objective_id: UUID, slug: str | None = None) -> Response:
        """With what was counted for it, its alerts and silences."""
        with transaction.atomic():
            found = self.objective_for(Action.DELETE, objective_id, slug, lock=True)
            check_match(request, ObjectiveSerializer(found).data)
            delete_objective(found.pk, actor=self.actor, now=timezone.now())
        return Response(status=status.HTTP_204_NO_CONTENT)


class ObjectiveStatusView(_OneObjective):
    """What was attained, what is left of the error budget, and how fast it burns."""

    @extend_schema(responses=StatusSerializer)
    def get(self, request: Request, objective_id: UUID, slug: str | None = None) -> Response:
        objective = self.objective_for(Action.VIEW, objective_id, slug)
        standing = read_standings([objective], now=timezone.now())[objective.pk]
        return Response(StatusSerializer(_told(objective, standing)).data)


def _told(objective: Objective, standing: Standing) -> dict[str, Any]:
    return {
        "as_of": standing.as_of,
        "counted": objective.tallied_at is not None,
        "new_before": new_before(objective),
        "count_failed_at": None if objective.tallied_at else objective.count_failed_at,
        "window": asdict(standing.window),
        "attained": standing.attained,
        "budget": asdict(standing.budget),
        "burn_rates": {str(seconds): burn for seconds, burn in standing.burns.items()},
        "pairs": [
            {
                "pair": one.pair.name,
                "severity": one.pair.severity.value,
                "threshold": one.pair.burn,
                "long_burn": one.long,
                "short_burn": one.short,
                "burning": one.burning,
            }
            for one in standing.pairs
        ],
        "exhausted_in_seconds": standing.exhausted.seconds,
    }
