"""Console: what tenants have a right to of the pool, whether they use it or not."""

from typing import Any, Final
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.access import console_page, signed_in
from dashboard.catalogue_forms import TenantField
from dashboard.filters import search_text
from dashboard.reads.models import offered_tenants
from dashboard.reads.reservations import claimed_by_tenants, list_reservations
from dashboard.refusals import add_refusal
from dashboard.sheets import leave, posted, sheet
from dashboard.tables import Column, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from gpupool.models import Reservation
from gpupool.policies.version_needs import LONGEST_TAG
from gpupool.services.reservations import MOST_DEVICES, change_reservation, create_reservation, delete_reservation
from tenants.actor import Actor, user_actor
from tenants.models import Tenant
from tenants.services import Conflict, InvalidInput

TABLE: Final = Table(
    name="console-reservations",
    sort="tenant",
    columns=(
        Column(key="tenant", label=gettext_lazy("Tenant"), order="slug", value=lambda row: row.slug),
        Column(key="gpu_tag", label=gettext_lazy("GPU tag"), order="gpu_tag", value=lambda row: row.gpu_tag),
        Column(
            key="devices", label=gettext_lazy("Devices"), order="devices", value=lambda row: row.devices, numeric=True
        ),
        Column(
            key="memory_bytes",
            label=gettext_lazy("Memory"),
            order="memory_bytes",
            value=lambda row: row.memory_bytes,
            numeric=True,
        ),
        Column(key="claimed", label=gettext_lazy("Claimed by it now"), numeric=True),
        Column(key="lendable", label=gettext_lazy("Idle part"), order="lendable", value=lambda row: row.lendable),
        Column(key="created", label=gettext_lazy("Since"), order="created_at", value=lambda row: row.created_at),
        Column(key="actions", hidden_label=gettext_lazy("Actions")),
    ),
)


class _Amounts(forms.Form):
    use_required_attribute = True

    devices = forms.IntegerField(
        label=gettext_lazy("Devices"),
        min_value=0,
        max_value=MOST_DEVICES,
        initial=0,
        widget=forms.NumberInput(attrs={"inputmode": "numeric"}),
    )
    memory_gib = forms.FloatField(
        label=gettext_lazy("Memory, in GiB"),
        min_value=0,
        max_value=2.0**32,
        initial=0,
        help_text=gettext_lazy("Instead of whole devices, or beside them."),
        widget=forms.NumberInput(attrs={"step": "any", "inputmode": "decimal"}),
    )
    lendable = forms.BooleanField(
        label=gettext_lazy("Others may use what lies idle, and go when the tenant needs it"),
        required=False,
        initial=True,
    )

    def amounts(self) -> dict[str, Any]:
        values = self.cleaned_data
        return {
            "devices": values["devices"],
            "memory_bytes": round(values["memory_gib"] * 2**30),
            "lendable": values["lendable"],
        }


class ReservationForm(_Amounts):
    """Devices, or memory of them, that are kept for a tenant."""

    tenant_id = TenantField(
        label=gettext_lazy("Tenant"),
        max_length=64,
        help_text=gettext_lazy("By its slug."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "list": "tenant-slugs", "autofocus": True}),
    )
    gpu_tag = forms.CharField(
        label=gettext_lazy("GPU tag"),
        required=False,
        max_length=LONGEST_TAG,
        help_text=gettext_lazy("Of devices with this tag; empty: of any GPU."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    field_order = ("tenant_id", "gpu_tag", "devices", "memory_gib", "lendable")


@console_page
@require_safe
def index(request: HttpRequest) -> HttpResponseBase:
    filtered = Filtered(search=search_text(request), placeholder=_("Tenant or GPU tag"))
    rows = list_reservations(search=filtered.search)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    page = read_page(TABLE, request, rows)
    return render(
        request,
        "console/reservations.html",
        {
            "page": page,
            "claimed": claimed_by_tenants({row.tenant_id for row in page.rows}),
            "filtered": filtered,
            "may_operate": signed_in(request).may_operate,
            "now": timezone.now(),
            "zone": str(timezone.get_current_timezone()),
        },
    )


@console_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest) -> HttpResponse:
    actor = _operator(request)
    form = ReservationForm(posted(request))
    if request.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            create_reservation(values["tenant_id"], gpu_tag=values["gpu_tag"], actor=actor, **form.amounts())
        except (InvalidInput, Conflict) as error:
            add_refusal(form, error, fields={"memory_bytes": "memory_gib"})
        else:
            messages.success(request, _("The reservation is made."))
            return leave(request, "console-reservations")
    context = {"form": form, "tenants": offered_tenants(), **_frame()}
    return sheet(request, "console/_reservation_new.html", context, status=_status(request))


@console_page
@require_http_methods(["GET", "POST"])
def change(request: HttpRequest, reservation_id: UUID) -> HttpResponse:
    actor, found = _operator(request), _reservation(reservation_id)
    initial = {"devices": found.devices, "memory_gib": found.memory_bytes / 2**30, "lendable": found.lendable}
    form = _Amounts(posted(request), initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            change_reservation(found.pk, actor=actor, **form.amounts())
        except (InvalidInput, Conflict) as error:
            add_refusal(form, error, fields={"memory_bytes": "memory_gib"})
        else:
            messages.success(request, _("The reservation is changed."))
            return leave(request, "console-reservations")
    context = {"form": form, "reservation": found, "tenant": _tenant(found), **_frame()}
    return sheet(request, "console/_reservation_change.html", context, status=_status(request))


@console_page
@require_http_methods(["GET", "POST"])
def end(request: HttpRequest, reservation_id: UUID) -> HttpResponse:
    actor, found = _operator(request), _reservation(reservation_id)
    if request.method == "POST":
        delete_reservation(found.pk, actor=actor)
        messages.success(request, _("The reservation is ended."))
        return leave(request, "console-reservations")
    context = {"reservation": found, "tenant": _tenant(found), **_frame()}
    return sheet(request, "console/_reservation_end.html", context)


def _status(request: HttpRequest) -> int:
    return 422 if request.method == "POST" else 200


def _operator(request: HttpRequest) -> Actor:
    user = signed_in(request)
    if not user.may_operate:
        raise PermissionDenied
    return user_actor(user.pk)


def _reservation(reservation_id: UUID) -> Reservation:
    try:
        return Reservation.objects.get(pk=reservation_id)
    except Reservation.DoesNotExist as error:
        raise Http404 from error


def _tenant(reservation: Reservation) -> Tenant | None:
    return Tenant.objects.filter(pk=reservation.tenant_id).first()


def _frame() -> dict[str, object]:
    return {"title": _("Reservations"), "back": reverse("console-reservations")}
