"""Console: nodes with their devices, what they can isolate by, what went wrong there and what was done about it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import frames, labels, selectors
from dashboard.access import console_page, signed_in
from dashboard.filters import search_text
from dashboard.forms import IsolationForm, MaintenanceForm
from dashboard.refusals import said
from dashboard.sheets import leave, posted, sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from gpupool import services
from gpupool.models import Device, Node
from gpupool.reads import healing
from gpupool.reads.fuse_board import read_fuse_board
from gpupool.reads.nodes import get_node, table_of_nodes
from gpupool.selectors import DeviceOverview, list_devices_overview
from gpupool.services.device_isolation import give_back_device, isolate_device
from tenants.actor import Actor, user_actor
from tenants.services import Conflict, InvalidInput

_MOST_EVENTS = 20
_MOST_ACTIONS = 20
_OUTAGE = ("isolated_at", "isolated_reason")


@dataclass(frozen=True, slots=True)
class Ability:
    """One thing that a node can isolate instances by, or why it cannot."""

    name: str
    available: bool
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device, and who has taken it out why, where somebody has. Of a silent one nothing is known but what it is."""

    device: DeviceOverview
    shown: frames.DeviceRow
    allocatable: bool
    traceable_id: str
    isolated_reason: str
    isolated: bool
    sm_active: float | None  # 0 to 1; only a dcgm-exporter tells
    temperature_celsius: float | None


TABLE: Final = Table(
    name="console-nodes",
    sort="node",
    columns=(
        Column(key="node", label=gettext_lazy("Node"), order="name", value=lambda row: row.name),
        Column(key="state", label=gettext_lazy("State"), order="state", value=lambda row: row.state),
        Column(key="gpus", label=gettext_lazy("GPUs"), order="gpus", value=lambda row: row.gpus, numeric=True),
        Column(
            key="instances",
            label=gettext_lazy("Instances"),
            order="running",
            value=lambda row: row.running,
            numeric=True,
        ),
        Column(key="memory", label=gettext_lazy("Memory"), order="memory", value=lambda row: row.memory, numeric=True),
        Column(
            key="reserved",
            label=gettext_lazy("Reserved"),
            order="reserved",
            value=lambda row: row.reserved,
            numeric=True,
        ),
        Column(key="schedulable", label=gettext_lazy("Schedulable"), numeric=True),
        Column(key="heard", label=gettext_lazy("Last heard"), order="heard", value=lambda row: row.last_seen_at),
    ),
)
_OUT_OF_SERVICE: Final = {"cordoned": "cordoned", "maintenance": "maintenance"}


@console_page
@require_safe
def index(request: HttpRequest) -> HttpResponseBase:
    facets = [
        Facet.read(request, "state", _("State"), list(labels.NODE_STATES.items()), all_label=_("All states")),
        Facet.read(
            request,
            "service",
            _("Service"),
            [("in", _("In service")), ("cordoned", _("Cordoned")), ("maintenance", _("In maintenance"))],
            all_label=_("All"),
        ),
        Facet.read(
            request,
            "simulated",
            _("Simulated"),
            [("no", _("Real ones")), ("yes", _("Simulated ones"))],
            all_label=_("All"),
        ),
    ]
    filtered = Filtered(search=search_text(request), placeholder=_("Name or address"), facets=facets)
    state, service, simulated = (facet.chosen for facet in facets)
    rows = table_of_nodes()
    if state:
        rows = rows.filter(state=state)
    if service:
        rows = (
            rows.filter(cordoned=False, maintenance=False)
            if service == "in"
            else rows.filter(**{_OUT_OF_SERVICE[service]: True})
        )
    if simulated:
        rows = rows.filter(simulated=simulated == "yes")
    if filtered.search:
        rows = rows.filter(Q(name__icontains=filtered.search) | Q(address__icontains=filtered.search))
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    found = read_page(TABLE, request, rows)
    devices: dict[UUID, list[DeviceOverview]] = {}
    for device in list_devices_overview(node_ids=[node.pk for node in found.rows]):
        devices.setdefault(device.node_id, []).append(device)
    return render(
        request,
        "console/nodes.html",
        {
            "page": found,
            "rows": [(node, *_sums(devices.get(node.pk, []))) for node in found.rows],
            "filtered": filtered,
            "may_operate": signed_in(request).may_operate,
            "now": timezone.now(),
            "zone": str(timezone.get_current_timezone()),
        },
    )


@console_page
@require_safe
def page(request: HttpRequest, node_id: UUID) -> HttpResponse:
    node, now = find_node(node_id), timezone.now()
    instances = selectors.list_instances().filter(node=node)
    return render(
        request,
        "console/node.html",
        {
            "node": node,
            "devices": _devices(node, now=now),
            "fuses": read_fuse_board(node.pk),
            "abilities": _abilities(node),
            "facts": sorted((name, value) for name, value in node.facts.items() if value),
            "events": healing.list_events({"node": node.name})[:_MOST_EVENTS],
            "actions": healing.list_actions({"node": node.name})[:_MOST_ACTIONS],
            "rows": frames.instance_rows(instances[:100]),
            "may_operate": signed_in(request).may_operate,
            "now": now,
            "zone": str(timezone.get_current_timezone()),
        },
    )


@console_page
@require_http_methods(["GET", "POST"])
def maintenance(request: HttpRequest, node_id: UUID) -> HttpResponse:
    """Asks why; then the node is out of service, and what runs there moves away."""
    node, actor = find_node(node_id), operator_of(request)
    form = MaintenanceForm(posted(request))
    if request.method == "POST" and form.is_valid():
        try:
            services.set_node_maintenance(node.pk, True, reason=form.cleaned_data["reason"], actor=actor)
        except InvalidInput as error:
            form.add_error("reason", said(error.message))
        else:
            messages.success(request, _("Node %(node)s is in maintenance.") % {"node": node.name})
            return leave(request, "console-node", node.pk)
    status = 422 if request.method == "POST" else 200
    return sheet(request, "console/_node_maintenance.html", {**frame_of(node), "form": form}, status=status)


@console_page
@require_http_methods(["POST"])
def back(request: HttpRequest, node_id: UUID) -> HttpResponse:
    """Out of maintenance."""
    node = find_node(node_id)
    services.set_node_maintenance(node.pk, False, actor=operator_of(request))
    messages.success(request, _("Node %(node)s is in service again.") % {"node": node.name})
    return redirect("console-node", node.pk)


@console_page
@require_http_methods(["POST"])
def cordon(request: HttpRequest, node_id: UUID, to: str) -> HttpResponse:
    """Nothing new is placed there, or something may be again; nothing that runs is touched."""
    if to not in ("on", "off"):
        raise Http404
    node = find_node(node_id)
    services.set_node_cordoned(node.pk, to == "on", actor=operator_of(request))
    told = _("Nothing new is placed on node %(node)s.") if to == "on" else _("Node %(node)s takes new instances again.")
    messages.success(request, told % {"node": node.name})
    return redirect("console-node", node.pk)


@console_page
@require_http_methods(["GET", "POST"])
def isolate(request: HttpRequest, device_id: UUID) -> HttpResponse:
    """Asks why; then the device is out until somebody gives it back."""
    device, actor = _device(device_id), operator_of(request)
    form = IsolationForm(posted(request))
    if request.method == "POST" and form.is_valid():
        isolate_device(
            device.pk,
            reason=form.cleaned_data["reason"],
            move_instances=form.cleaned_data["move_instances"],
            actor=actor,
        )
        messages.success(request, _("Device %(device)s is taken out.") % {"device": device.name})
        return leave(request, "console-node", device.node_id)
    status = 422 if request.method == "POST" else 200
    context = {**frame_of(device.node), "form": form, "device": device}
    return sheet(request, "console/_device_isolate.html", context, status=status)


@console_page
@require_http_methods(["POST"])
def give_back(request: HttpRequest, device_id: UUID) -> HttpResponse:
    """The device may be placed on again."""
    device = _device(device_id)
    try:
        give_back_device(device.pk, reason="Given back on the console.", actor=operator_of(request))
        messages.success(request, _("Device %(device)s is given back.") % {"device": device.name})
    except Conflict as error:
        messages.error(request, said(error.message))
    return redirect("console-node", device.node_id)


def operator_of(request: HttpRequest) -> Actor:
    """Whom the audit log names for what follows. Raises PermissionDenied unless they may operate."""
    user = signed_in(request)
    if not user.may_operate:
        raise PermissionDenied
    return user_actor(user.pk)


def find_node(node_id: UUID) -> Node:
    """Raises Http404."""
    try:
        return get_node(node_id)
    except Node.DoesNotExist as error:
        raise Http404 from error


def _device(device_id: UUID) -> Device:
    try:
        return healing.get_device(device_id)
    except Device.DoesNotExist as error:
        raise Http404 from error


def frame_of(node: Node) -> dict[str, object]:
    """What a dialog about the node is shown with."""
    return {"node": node, "title": node.name, "back": reverse("console-node", args=[node.pk])}


def _sums(devices: list[DeviceOverview]) -> tuple[int, int | None, int, int | None]:
    """GPUs, and memory of all devices: there, reserved, schedulable. Unknown where any is."""
    there = [device.memory_bytes for device in devices]
    left = [device.schedulable_bytes for device in devices]
    return (
        sum(device.kind == "gpu" for device in devices),
        None if None in there or not there else sum(size or 0 for size in there),
        sum(device.reserved_bytes for device in devices),
        None if None in left or not left else sum(size or 0 for size in left),
    )


def _devices(node: Node, *, now: datetime) -> list[DeviceRow]:
    known = {
        device.pk: device for device in node.devices.only("node", "allocatable", "traceable_id", "telemetry", *_OUTAGE)
    }
    rows = []
    for one in list_devices_overview(node.pk):
        if one.id not in known:
            continue
        device, silent = known[one.id], frames.is_silent(one, now=now)
        rows.append(
            DeviceRow(
                device=one,
                shown=frames.device_row(one, now=now),
                allocatable=device.allocatable,
                traceable_id=device.traceable_id,
                isolated_reason=device.isolated_reason,
                isolated=device.isolated_at is not None,
                sm_active=None if silent else device.telemetry.get("sm_active"),
                temperature_celsius=None if silent else one.temperature_celsius,
            )
        )
    return rows


def _abilities(node: Node) -> list[Ability]:
    return [
        Ability(labels.word("ability", name), bool(told.get("available")), str(told.get("reason", "")))
        for name, told in node.capabilities.items()
        if isinstance(told, dict)
    ]
