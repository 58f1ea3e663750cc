"""What the wall asks for beside its live frames: the tree as it was, a device's history, the tree as a table."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, Final, ParamSpec
from uuid import UUID

import msgspec
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext as _

from dashboard.access import PortalAccess, console_page, portal_page
from dashboard.tables import is_csv, line_of
from gpupool.models import Device, Node
from gpupool.policies.memory_history import RANGES
from gpupool.policies.memory_summary import Row, summarise, table_of
from gpupool.policies.memory_tree import MemoryTree
from gpupool.policies.memory_wire import frame_of
from gpupool.reads.memory import read_tenant_quotas, read_tenant_tree, read_tree
from gpupool.reads.memory_history import read_frame, read_history
from tenants.models import Tenant
from tenants.policies.roles import Action, Object

Rest = ParamSpec("Rest")

_FRAMES_FOR: Final = timedelta(minutes=15)
_SLACK: Final = timedelta(minutes=1)
"""More than is promised: whoever asks for the earliest moment asks a little later. They are kept for 18 minutes."""
_COLUMNS: Final = tuple(field.name for field in fields(Row))


def _portal(
    answer: Callable[Concatenate[HttpRequest, Tenant | None, Rest], HttpResponseBase],
) -> Callable[..., HttpResponseBase]:
    """The same answer as a tenant may see it."""

    @portal_page
    def view(
        request: HttpRequest, access: PortalAccess, /, *args: Rest.args, **kwargs: Rest.kwargs
    ) -> HttpResponseBase:
        access.require(Action.VIEW, Object.USAGE)
        return answer(request, access.tenant, *args, **kwargs)

    return view


def _frame(request: HttpRequest, tenant: Tenant | None) -> HttpResponse:
    """The keyframe's JSON at or before `at`, in seconds since 1970; without it, of now."""
    now = timezone.now()
    if "at" not in request.GET:
        return _json(frame_of(_tree(tenant, now), epoch=0, seq=0, at=now))
    at = _moment(request.GET["at"])
    if at is None:
        return _refused(_("Say the time as seconds since 1970."), status=400)
    if at < now - _FRAMES_FOR - _SLACK:
        return _refused(_("Frames are kept for 15 minutes. Look at a device's history for what was before."))
    found = read_frame(at, tenant=tenant)
    if found is None:
        return _refused(_("No frame was recorded then. The controller records one each 5 seconds while it runs."))
    return _json(frame_of(found.tree, epoch=0, seq=0, at=found.at))


def _history(request: HttpRequest, tenant: Tenant | None) -> HttpResponse:
    """One device's memory by segment: `device` is its id, `range` one of RANGES."""
    span = request.GET.get("range", "1h")
    try:
        device_id = UUID(request.GET.get("device", ""))
    except ValueError:
        return _refused(_("Name a device by its id."), status=400)
    if span not in RANGES:
        return _refused(_("There are these ranges: %(ranges)s.") % {"ranges": ", ".join(RANGES)}, status=400)
    try:
        found = read_history(device_id, span, now=timezone.now(), tenant=tenant)
    except Device.DoesNotExist:
        if tenant is not None:  # the same whether there is no such device, or nothing of theirs was on it yet
            return _json({"device": str(device_id), "label": "", "size": None, "step": 60, "start": 0, "series": {}})
        return _refused(_("There is no such device."))
    return _json(
        {
            "device": str(found.device_id),
            "label": found.label,
            "size": found.size_mib,
            "step": round(found.series.step.total_seconds()),
            "start": round(found.series.start.timestamp()),
            "series": found.series.values,
        }
    )


def _table(request: HttpRequest, tenant: Tenant | None) -> HttpResponseBase:
    """Every segment with what it is a part of, and the tree's figures; as CSV with `format=csv`.

    `device` and `node` leave those of one alone.
    """
    now = timezone.now()
    node_id = device_id = None
    try:
        if "node" in request.GET and tenant is None:
            node_id = UUID(request.GET["node"])
        if "device" in request.GET:
            device_id = str(UUID(request.GET["device"]))
        tree = _tree(tenant, now, node_id)
    except ValueError:
        return _refused(_("Name nodes and devices by their ids."), status=400)
    except Node.DoesNotExist:
        return _refused(_("There is no such node."))
    rows = (row for row in table_of(tree) if device_id is None or row.device_id == device_id)
    if is_csv(request):
        answer = HttpResponse("".join(_lines(rows)), content_type="text/csv; charset=utf-8")
        answer["Content-Disposition"] = 'attachment; filename="gpu-memory.csv"'
        return answer
    told = {
        "at": round(now.timestamp()),
        "scope": tree.scope,
        "simulated": tree.simulated,
        "summary": asdict(summarise(tree)),
        "rows": [asdict(row) for row in rows],
    }
    return _json(told if tenant is None else told | {"quotas": read_tenant_quotas(tenant, now=now)})


def _tree(tenant: Tenant | None, now: datetime, node_id: UUID | None = None) -> MemoryTree:
    return read_tree(now=now, node_id=node_id) if tenant is None else read_tenant_tree(tenant, now=now)


def _lines(rows: Iterator[Row]) -> Iterator[str]:
    yield line_of(_COLUMNS)
    for row in rows:
        yield line_of(getattr(row, name) for name in _COLUMNS)


def _moment(text: str) -> datetime | None:
    try:
        seconds = float(text)
        return datetime.fromtimestamp(seconds, tz=UTC) if math.isfinite(seconds) else None
    except (ValueError, OverflowError, OSError):
        return None


def _json(told: Any, *, status: int = 200) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(told), content_type="application/json", status=status)


def _refused(sentence: str, *, status: int = 404) -> HttpResponse:
    return _json({"detail": sentence}, status=status)


@console_page
def console_frame(request: HttpRequest) -> HttpResponseBase:
    """Of the whole pool."""
    return _frame(request, None)


@console_page
def console_history(request: HttpRequest) -> HttpResponseBase:
    """Of any device."""
    return _history(request, None)


@console_page
def console_tree(request: HttpRequest) -> HttpResponseBase:
    """Of the whole pool."""
    return _table(request, None)


portal_frame = _portal(_frame)
portal_history = _portal(_history)
portal_tree = _portal(_table)
