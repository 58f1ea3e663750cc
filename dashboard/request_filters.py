"""What the address of a list of requests asks for. An address can hold anything: what makes no sense is passed over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from dashboard import labels
from dashboard.filters import search_text
from dashboard.ranges import TimeRange
from dashboard.tables import Facet
from dashboard.tables.table import Filtered
from dashboard.templatetags.gatehouse import count, milliseconds
from tenants.models import ApiKey, Tenant
from tenants.reads.latency import LatencySums, all_models
from tenants.reads.request_log import FAILURE, FAULT, OUTCOMES, UNWELL, Wanted

DOORS: Final = ("relay", "drf")
APIS: Final = (
    *("chat", "completions", "responses", "messages", "embeddings", "rerank", "tokenize", "count_tokens", "infer"),
    "realtime",
)
_TTFT_CHOICES: Final = (200, 500, 1_000, 2_000, 5_000)
_LONGEST_MS: Final = 86_400_000.0
_KEPT: Final = (
    *("range", "from", "to", "zone", "tier", "version", "instance", "status", "code"),
    *("min_tpot_ms", "min_queue_ms", "min_duration_ms"),
)
"""What the filter bar has no choice for, and a link may set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for, and how the filter bar shows it. `chips`: (what is filtered, the address's names of it)."""

    wanted: Wanted
    filtered: Filtered
    kept: Sequence[tuple[str, str]]
    chips: Sequence[tuple[str, str]]
    request_id: UUID | None  # that is searched for


def uuid_in(request: HttpRequest, name: str) -> UUID | None:
    """The id under `name` in the address."""
    try:
        return UUID(request.GET.get(name, ""))
    except ValueError:
        return None


def tier_in(request: HttpRequest) -> str:
    """The SLA tier in the address; "" where there is none of that name."""
    tier = request.GET.get("tier", "")
    return tier if tier in labels.SLA_TIERS else ""


def tier_chip(tier: str) -> str:
    return _("Tenants of tier %(tier)s") % {"tier": labels.SLA_TIERS[tier]}


def _least(request: HttpRequest, name: str) -> float | None:
    try:
        value = float(request.GET.get(name, ""))
    except ValueError:
        return None
    return value if 0 <= value <= _LONGEST_MS else None


def _word(request: HttpRequest, name: str, length: int) -> str:
    return request.GET.get(name, "").replace("\x00", "").strip()[:length]


def read_asked(
    request: HttpRequest,
    span: TimeRange,
    *,
    sums: Sequence[LatencySums],
    tenant: Tenant | None,
    tenants: Sequence[tuple[Tenant, int]] = (),
    keys: Sequence[ApiKey] = (),
    portal: bool = False,
) -> Asked:
    """`sums`: of the range, each model's. `tenants` and `keys`: what there is to choose from."""
    model = _word(request, "model", 200)
    facets = _facets(request, sums=sums, model=model, tenant=tenant, tenants=tenants, keys=keys, portal=portal)
    chosen = {facet.key: facet.chosen for facet in facets}
    status = _word(request, "status", 3)
    wanted = Wanted(
        since=span.since,
        until=span.until,
        tenant_id=tenant.pk if tenant else None,
        tier="" if portal else tier_in(request),
        key_id=uuid_in(request, "key"),
        model=model,
        version_id=uuid_in(request, "version"),
        instance_id=uuid_in(request, "instance"),
        outcome=chosen["outcome"],
        status=int(status) if status.isdecimal() and int(status) else None,
        status_class=int(chosen["class"]) if chosen["class"] else None,
        error_code=_word(request, "code", 64),
        door=chosen["door"],
        api=chosen["api"],
        slow=chosen["speed"] == "slow",
        min_ttft_ms=_least(request, "min_ttft_ms"),
        min_tpot_ms=_least(request, "min_tpot_ms"),
        min_queue_ms=_least(request, "min_queue_ms"),
        min_duration_ms=_least(request, "min_duration_ms"),
    )
    search = search_text(request)
    try:
        request_id = UUID(search) if search else None
    except ValueError:
        request_id = None
    return Asked(
        wanted=wanted,
        filtered=Filtered(
            search=search,
            placeholder=_("Request id") if portal else _("Request id, or a tenant’s address"),
            facets=facets,
        ),
        kept=[(name, request.GET[name]) for name in _KEPT if request.GET.get(name)],
        chips=_chips(wanted),
        request_id=request_id,
    )


def _facets(
    request: HttpRequest,
    *,
    sums: Sequence[LatencySums],
    model: str,
    tenant: Tenant | None,
    tenants: Sequence[tuple[Tenant, int]],
    keys: Sequence[ApiKey],
    portal: bool,
) -> list[Facet]:
    every = _("All")
    whole = all_models(sums) if sums else None
    models: list[tuple[str, str]] = [(one.model, f"{one.model} ({count(one.requests)})") for one in sums]
    if model and all(name != model for name, _n in models):
        models.append((model, model))
    facets = []
    if not portal:
        found = [(one.slug, f"{one.name} ({count(n)})") for one, n in tenants]
        if tenant is not None and all(slug != tenant.slug for slug, _n in found):
            found.append((tenant.slug, tenant.name))
        facets.append(Facet.read(request, "tenant", _("Tenant"), found, all_label=every))
    facets.append(Facet.read(request, "model", _("Model"), models, all_label=every))
    if portal or tenant is not None:
        named = [(str(key.pk), key.name) for key in keys]
        facets.append(Facet.read(request, "key", _("Key"), named, all_label=every))
    least = [(str(ms), _("over %(time)s") % {"time": milliseconds(ms)}) for ms in _TTFT_CHOICES]
    own = _word(request, "min_ttft_ms", 20)
    if own and own not in dict(least) and (ms := _least(request, "min_ttft_ms")) is not None:
        least.append((own, _("over %(time)s") % {"time": milliseconds(ms)}))
    return [
        *facets,
        Facet.read(request, "outcome", _("Outcome"), _outcomes(whole), all_label=every),
        Facet.read(request, "class", _("Status"), [(n, f"{n}xx") for n in "2345"], all_label=every),
        Facet.read(request, "door", _("Door"), [(name, name) for name in DOORS], all_label=every),
        Facet.read(request, "api", _("API"), [(name, name) for name in APIS], all_label=every),
        Facet.read(request, "min_ttft_ms", _("First token"), least, all_label=every),
        Facet.read(request, "speed", _("Speed"), [("slow", _("Slow only"))], all_label=every),
    ]


def _outcomes(whole: LatencySums | None) -> list[tuple[str, str | Promise]]:
    """With counts, where sums have them."""

    def told(label: object, n: int | None) -> str:
        return str(label) if n is None else f"{label} ({count(n)})"

    known = {} if whole is None else {
        "success": whole.requests - whole.failures - whole.cancelled,
        "cancelled": whole.cancelled,
        UNWELL: whole.failures + whole.cancelled,
        FAILURE: whole.failures,
        FAULT: whole.faults,
    }  # fmt: skip
    words = {
        UNWELL: _("Not answered"),
        FAILURE: _("Failures"),
        FAULT: _("Failures of ours"),
        **{name: labels.word("outcome", name) for name in OUTCOMES},
    }
    return [(name, told(label, known.get(name))) for name, label in words.items()]


def _chips(wanted: Wanted) -> list[tuple[str, str]]:
    """(words, name in the address) of what only a link has set."""
    found = []
    if wanted.tier:
        found.append((tier_chip(wanted.tier), "tier"))
    if wanted.min_tpot_ms is not None:
        found.append((_("Over %(ms)g ms a token") % {"ms": wanted.min_tpot_ms}, "min_tpot_ms"))
    if wanted.min_queue_ms is not None:
        found.append((_("Queued over %(ms)g ms") % {"ms": wanted.min_queue_ms}, "min_queue_ms"))
    if wanted.min_duration_ms is not None:
        found.append((_("Took over %(ms)g ms") % {"ms": wanted.min_duration_ms}, "min_duration_ms"))
    if wanted.status is not None:
        found.append((_("Status %(status)s") % {"status": wanted.status}, "status"))
    if wanted.error_code:
        found.append((_("Error %(code)s") % {"code": wanted.error_code}, "code"))
    if wanted.version_id is not None:
        found.append((_("Version %(id)s") % {"id": str(wanted.version_id)[:8]}, "version"))
    if wanted.instance_id is not None:
        found.append((_("Instance %(id)s") % {"id": str(wanted.instance_id)[:8]}, "instance"))
    return found


def total_of(wanted: Wanted, sums: Sequence[LatencySums]) -> int | None:
    """How many there are, where the sums know; they know of nothing but models and the commonest outcomes."""
    narrowed = Wanted(
        since=wanted.since, until=wanted.until, tenant_id=wanted.tenant_id, model=wanted.model, outcome=wanted.outcome
    )
    if wanted != narrowed:
        return None
    found = [one for one in sums if not wanted.model or one.model == wanted.model]
    by_outcome = {
        "": lambda one: one.requests,
        "success": lambda one: one.requests - one.failures - one.cancelled,
        "cancelled": lambda one: one.cancelled,
        UNWELL: lambda one: one.failures + one.cancelled,
        FAILURE: lambda one: one.failures,
        FAULT: lambda one: one.faults,
    }
    counted = by_outcome.get(wanted.outcome)
    return None if counted is None else sum(counted(one) for one in found)
