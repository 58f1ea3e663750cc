"""Console: will it fit, and why not. The address says the whole question, so that it can be shared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from dashboard import labels
from dashboard.access import console_page
from dashboard.fit_form import FitForm
from gpupool.policies.estimate import Estimate, Part
from gpupool.reads.dry_run import Answer, answer

SHOWN_DEVICES = 200

_PARTS: Sequence[tuple[str, str | Promise, str | Promise]] = (
    ("weights", gettext_lazy("Weights"), gettext_lazy("as their files' headers say")),
    ("kv_cache", gettext_lazy("KV cache"), gettext_lazy("of all tokens in the context")),
    ("compute", gettext_lazy("Compute buffers"), gettext_lazy("activations and attention scratch")),
    ("graphs", gettext_lazy("Graphs"), gettext_lazy("captured for batches")),
    ("context", gettext_lazy("Overhead"), gettext_lazy("driver, libraries and the process")),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One part of the estimate; bytes on each place, and on the fullest device for the meter."""

    label: str
    note: str
    places: tuple[int, ...]
    largest: int


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The estimate as a table: a column for each kind of device, one for the host."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    totals: tuple[int, ...]
    largest: int
    layers: tuple[int, ...]


@console_page
@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """The form, and below it the answer to what the address asks."""
    form = FitForm(request.GET or None)
    found: Answer | None = None
    if form.is_bound and form.is_valid():
        found = answer(form.question())
    context: dict[str, Any] = {"form": form, "answer": found, "versions": bool(form.fields["version"].choices)}  # type: ignore[attr-defined]  # a choice field
    if found is not None:
        context |= {
            "breakdown": None if found.estimate is None else breakdown(found.estimate),
            "devices": found.devices[:SHOWN_DEVICES],
            "cut": found.device_count > SHOWN_DEVICES,
            "shown": SHOWN_DEVICES,
            "tone": labels.TONES.get(found.verdict, "idle"),
            "simulated": any(one.simulated for one in found.devices[:SHOWN_DEVICES]),
        }
    return render(request, "console/fit.html", context, status=422 if form.is_bound and not form.is_valid() else 200)


def breakdown(made: Estimate) -> Breakdown:
    """Devices that hold the same share one column."""
    groups: list[tuple[Part, int]] = []
    for card in made.cards:
        if groups and groups[-1][0] == card:
            groups[-1] = (card, groups[-1][1] + 1)
        else:
            groups.append((card, 1))
    columns, parts, number = [], [], 1
    for card, count in groups:
        columns.append(_card_title(number, count))
        parts.append(card)
        number += count
    columns.append(_("Host memory"))
    parts.append(made.host)
    lines = []
    for name, label, note in _PARTS:
        places = tuple(int(getattr(part, name)) for part in parts)
        if any(places):
            lines.append(Line(str(label), str(note), places, max(places)))
    return Breakdown(
        columns=tuple(columns),
        lines=tuple(lines),
        totals=tuple(part.total for part in parts),
        largest=max(part.total for part in parts),
        layers=tuple(part.layers for part in parts),
    )


def _card_title(number: int, count: int) -> str:
    if count == 1:
        return _("Device %(number)s") % {"number": number}
    return _("Devices %(first)s to %(last)s, each") % {"first": number, "last": number + count - 1}
