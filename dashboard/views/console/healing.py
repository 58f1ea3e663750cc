"""Console: what is answered to which error, within which bounds, and what was done and noticed."""

from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import F, QuerySet, TextField, Value
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import labels
from dashboard.access import console_page, signed_in
from dashboard.fault_sentences import fault_said, note_said
from dashboard.filters import search_text
from dashboard.refusals import add_refusal
from dashboard.sheets import leave, posted, sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from gpupool.models import DeviceEvent, HealingAction, XidRule
from gpupool.policies.remedy import REMEDY_OF
from gpupool.policies.xid import CATALOGUE, PAPER_CODES, Rule, Verb, all_rules, rule_for
from gpupool.reads import healing as reads
from gpupool.services.xid_rules import drop_xid_rule, set_xid_rule
from tenants.actor import Actor, user_actor
from tenants.services import Conflict, InvalidInput

_BOUND: Final = (Verb.FOLLOW_TEXT, Verb.MERGE_48, Verb.CANCEL_163)
"""They mean one code each: nobody chooses them for another."""

ACTIONS: Final = Table(
    name="console-healing-actions",
    sort="-at",
    columns=(
        Column(key="at", label=gettext_lazy("When"), order="pk", value=lambda row: row.created_at),
        Column(key="node", label=gettext_lazy("Node"), order="node_name", value=lambda row: row.node_name),
        Column(key="device", label=gettext_lazy("Device"), order="device_name", value=lambda row: row.device_name),
        Column(key="action", label=gettext_lazy("Action"), order="action", value=lambda row: row.action),
        Column(key="state", label=gettext_lazy("State"), order="state", value=lambda row: row.state),
        Column(key="why", label=gettext_lazy("Why, and what came of it"), value=lambda row: row.reason),
    ),
)
EVENTS: Final = Table(
    name="console-healing-events",
    sort="-at",
    columns=(
        Column(key="at", label=gettext_lazy("When"), order="pk", value=lambda row: row.at),
        Column(key="node", label=gettext_lazy("Node"), order="node_name", value=lambda row: row.node_name),
        Column(key="device", label=gettext_lazy("Device"), order="device_name", value=lambda row: row.device_name),
        Column(key="kind", label=gettext_lazy("What"), order="kind", value=lambda row: row.kind),
        Column(key="code", value=lambda row: row.code),
        Column(key="text", label=gettext_lazy("Message"), value=lambda row: row.text),
        Column(key="verdict", label=gettext_lazy("What healing decided"), value=lambda row: row.verdict),
    ),
)
EVENTS_SHOWN: Final = ("at", "node", "device", "kind", "text", "verdict")


class RuleForm(forms.Form):
    """An operator's own answer to a code."""

    use_required_attribute = True

    action = forms.ChoiceField(label=gettext_lazy("Answer"), widget=forms.Select(attrs={"autofocus": True}))
    note = forms.CharField(label=gettext_lazy("Why"), max_length=500, required=False)

    def __init__(self, *args: Any, fixed: Verb | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        verbs = [verb for verb in Verb if verb not in _BOUND or verb == fixed]
        self.fields["action"].choices = [(verb.value, labels.word("answer", verb)) for verb in verbs]  # type: ignore[attr-defined]  # a choice field


class NewRuleForm(RuleForm):
    """The same of a code that no catalogue knows, or one that is typed."""

    code = forms.IntegerField(
        label=gettext_lazy("Error code (XID)"),
        min_value=0,
        max_value=(1 << 31) - 1,
        widget=forms.NumberInput(attrs={"inputmode": "numeric"}),
    )
    field_order = ("code", "action", "note")


@console_page
@require_safe
def rules(request: HttpRequest) -> HttpResponse:
    overrides = reads.overrides()
    search = search_text(request).lower()
    facet = Facet.read(
        request,
        "whose",
        _("Whose answer"),
        [("own", _("Own ones")), ("catalogue", _("NVIDIA's catalogue"))],
        all_label=_("All"),
    )
    rows = [_row(rule, overrides) for rule in all_rules(overrides)]
    if facet.chosen:
        rows = [row for row in rows if row["own"] is (facet.chosen == "own")]
    if search:
        rows = [row for row in rows if search in _sought(row)]
    return render(
        request,
        "console/healing.html",
        {
            "rows": rows,
            "filtered": Filtered(search=search, placeholder=_("Code, meaning or answer"), facets=[facet]),
            "bounds": reads.healing_rules(),
            "part": "rules",
            **_head(request),
        },
    )


@console_page
@require_safe
def actions(request: HttpRequest) -> HttpResponseBase:
    facets = [
        Facet.read(request, "state", _("State"), list(labels.HEALING_STATES.items()), all_label=_("All")),
        Facet.read(request, "action", _("Action"), list(labels.REMEDIES.items()), all_label=_("All")),
    ]
    filtered = Filtered(search=search_text(request), placeholder=_("Node or device"), facets=facets)
    chosen = {facet.key: facet.chosen for facet in facets if facet.chosen}
    rows = _named(HealingAction.objects.select_related("node", "device").filter(**chosen), filtered.search)
    if is_csv(request):
        return csv_response(ACTIONS, request, rows)
    return render(
        request,
        "console/healing_actions.html",
        {"page": read_page(ACTIONS, request, rows), "filtered": filtered, "part": "actions", **_head(request)},
    )


@console_page
@require_safe
def events(request: HttpRequest) -> HttpResponseBase:
    kinds = [
        ("xid", _("XID errors")),
        ("ecc", _("Memory errors (ECC)")),
        ("remap", _("Remapped rows")),
        ("recovery_action", _("Recovery asked for")),
        ("lost", _("Lost devices")),
        ("change", _("Changes")),
        ("memory", _("Memory guard")),
    ]
    facets = [Facet.read(request, "kind", _("What"), kinds, all_label=_("All"))]
    filtered = Filtered(search=search_text(request), placeholder=_("Node or device"), facets=facets)
    rows = DeviceEvent.objects.select_related("node", "device").defer("data")
    if facets[0].chosen:
        rows = rows.filter(kind=facets[0].chosen)
    rows = _named(rows, filtered.search)
    if is_csv(request):
        return csv_response(EVENTS, request, rows)
    page = read_page(EVENTS, request, rows)
    return render(
        request,
        "console/healing_events.html",
        {
            "page": page,
            "headings": [heading for heading in page.headings if heading.key in EVENTS_SHOWN],
            "filtered": filtered,
            "part": "events",
            **_head(request),
        },
    )


@console_page
@require_http_methods(["GET", "POST"])
def rule(request: HttpRequest, code: int) -> HttpResponse:
    """Another answer to a code; what counts now is said above the form."""
    actor = _operator(request)
    overrides = reads.overrides()
    now = rule_for(code, overrides)
    if now is None:
        raise Http404
    own = overrides.get(code)
    initial = {"action": now.verb.value, "note": own.note if own is not None else ""}
    form = RuleForm(posted(request), fixed=_fixed(code), initial=initial)
    if request.method == "POST" and form.is_valid() and _set(request, form, code, actor):
        return leave(request, "console-healing")
    context = {"form": form, "code": code, "rule": now, "own": own is not None, **_frame()}
    return sheet(request, "console/_rule_change.html", context, status=_status(request))


@console_page
@require_http_methods(["GET", "POST"])
def new_rule(request: HttpRequest) -> HttpResponse:
    actor = _operator(request)
    form = NewRuleForm(posted(request))
    if request.method == "POST" and form.is_valid() and _set(request, form, form.cleaned_data["code"], actor):
        return leave(request, "console-healing")
    return sheet(request, "console/_rule_new.html", {"form": form, **_frame()}, status=_status(request))


@console_page
@require_http_methods(["GET", "POST"])
def drop_rule(request: HttpRequest, code: int) -> HttpResponse:
    """The catalogue's answer counts again, or none."""
    actor = _operator(request)
    own = reads.overrides().get(code)
    if own is None:
        raise Http404
    if request.method == "POST":
        try:
            drop_xid_rule(code, actor=actor)
        except XidRule.DoesNotExist as error:
            raise Http404 from error
        messages.success(request, _("The own answer to %(code)s is dropped.") % {"code": code})
        return leave(request, "console-healing")
    return sheet(request, "console/_rule_drop.html", {"code": code, "own": own, "then": rule_for(code, {}), **_frame()})


def _set(request: HttpRequest, form: RuleForm, code: int, actor: Actor) -> bool:
    try:
        set_xid_rule(code, action=form.cleaned_data["action"], note=form.cleaned_data["note"], actor=actor)
    except (InvalidInput, Conflict) as error:
        add_refusal(form, error, fields={"answer": "action"})
        return False
    messages.success(request, _("The answer to %(code)s is set; it counts from the next error on.") % {"code": code})
    return True


def _row(found: Rule, overrides: "dict[int, Rule]") -> dict[str, Any]:
    known = CATALOGUE.get(found.code) or PAPER_CODES.get(found.code)
    return {
        "rule": found,
        "meaning": fault_said(found.meaning),
        "note": note_said(found.note),
        "own": found.code in overrides,
        "answer": labels.word("answer", found.verb),
        "does": labels.word("remedy", REMEDY_OF[found.verb]),
        "instead_of": labels.word("answer", known.verb) if found.code in overrides and known is not None else "",
    }


def _sought(row: dict[str, Any]) -> str:
    """What a search looks at: also the meaning in English, as other pages of the world have it."""
    return f"{row['rule'].code} {row['rule'].meaning} {row['meaning']} {row['answer']}".lower()


def _fixed(code: int) -> Verb | None:
    return CATALOGUE[code].verb if code in CATALOGUE else None


def _named(rows: "QuerySet[Any]", search: str) -> "QuerySet[Any]":
    """With the names of node and device to sort by; those that contain the words sought."""
    rows = rows.annotate(
        node_name=F("node__name"),
        device_name=Coalesce(F("device__stable_id"), Value(""), output_field=TextField()),
    )
    if not search:
        return rows
    found: QuerySet[Any] = rows.filter(node_name__icontains=search) | rows.filter(device_name__icontains=search)
    return found


def _status(request: HttpRequest) -> int:
    return 422 if request.method == "POST" else 200


def _operator(request: HttpRequest) -> Actor:
    user = signed_in(request)
    if not user.may_operate:
        raise PermissionDenied
    return user_actor(user.pk)


def _frame() -> dict[str, object]:
    return {"title": _("Healing rules"), "back": reverse("console-healing")}


def _head(request: HttpRequest) -> dict[str, object]:
    return {
        "may_operate": signed_in(request).may_operate,
        "now": timezone.now(),
        "zone": str(timezone.get_current_timezone()),
    }
