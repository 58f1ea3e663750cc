"""The board of objectives: the list, the chosen one, its alerts and silences. As many queries for 500 as for one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, log10
from typing import Any, Final
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from dashboard import slo_words
from dashboard.charts import slo as charts
from dashboard.reads.slo_list import STATES
from gateway.models import Objective, ObjectiveAlert, Silence
from gateway.policies.slo import MINUTE, PAIRS, can_fire, most_burn
from gateway.policies.slo_alerts import AlertState
from gateway.reads import slo
from gateway.reads.slo import PairStanding, Standing
from gateway.services.objective_alerts import is_silenced
from gateway.services.objective_tallies import NEW_AT_ONCE
from gpupool.models import ModelVersion
from tenants.reads.latency import latency_by_model

MOST_SILENCES: Final = 20
LOOK_SECONDS: Final = 15
"""Objectives are looked at so often, by the task `evaluate-objectives`."""
STANDS_STILL: Final = timedelta(minutes=2)
"""After so long without a look the page says that figures are missing."""

LITTLE_LEFT: Final = 0.25
"""A budget of which no more than this is left is pointed out, although it burns no faster than it may."""


@dataclass(frozen=True, slots=True)
class Row:
    """One objective of the list. `state`: one of STATES; silent: no traffic."""

    objective: Objective
    standing: Standing
    alerts: Sequence[ObjectiveAlert]
    silenced: bool

    @property
    def state(self) -> str:
        if not self.objective.enabled:
            return "off"
        for severity in ("page", "ticket"):
            if any(alert.severity == severity for alert in self.alerts):
                return severity
        if self.objective.tallied_at is None:
            return "counting"
        remaining = self.standing.budget.remaining
        if remaining is None:
            return "silent"
        return "spent" if remaining <= 0 else "good"

    @property
    def acknowledged(self) -> bool:
        """Somebody is at everything that burns."""
        return bool(self.alerts) and all(alert.state == AlertState.ACKNOWLEDGED.value for alert in self.alerts)

    @property
    def tone(self) -> str:
        """Of the figures: bad, warn, good or idle."""
        remaining = self.standing.budget.remaining
        if self.state == "good" and remaining is not None and remaining <= LITTLE_LEFT:
            return "warn"
        return {"page": "bad", "spent": "bad", "ticket": "warn", "good": "good"}.get(self.state, "idle")

    @property
    def word(self) -> str:
        return {
            "page": _("Fast burn, paging"),
            "ticket": _("Slow burn, ticket"),
            "spent": _("Budget used up"),
            "good": _("Within budget"),
            "silent": _("No traffic"),
            "counting": _("Being counted"),
            "off": _("Switched off"),
        }[self.state]

    @property
    def icon(self) -> str:
        return {"page": "flame", "spent": "flame", "ticket": "alert-triangle", "good": "check"}.get(self.state, "clock")

    @property
    def aim(self) -> str:
        return slo_words.aim_text(self.objective)

    @property
    def burn(self) -> str:
        return slo_words.burn_text(self.standing.burn)

    @property
    def spark(self) -> str:
        return charts.sparkline(self.standing.spark)

    @property
    def meter(self) -> float:
        """What the budget's bar shows, 0 to 100."""
        return round(100 * min(1.0, max(0.0, self.standing.budget.remaining or 0.0)), 1)

    @property
    def pace(self) -> float | None:
        """Where an even pace stands on that bar; None where there is none."""
        pace = self.standing.budget.even_pace
        return None if pace is None else round(min(99.4, 100 * pace), 1)

    @property
    def order(self) -> tuple[int, float]:
        """What needs a look first."""
        remaining = self.standing.budget.remaining
        return STATES.index(self.state), 1.0 if remaining is None else remaining


@dataclass(frozen=True, slots=True)
class BurnBar:
    """One window of a pair as a bar: `width` and `mark` in hundredths of it, on a logarithmic scale."""

    window: str
    value: str
    width: float
    mark: float
    tone: str


@dataclass(frozen=True, slots=True)
class PairBars:
    standing: PairStanding
    bars: Sequence[BurnBar]
    alert: ObjectiveAlert | None
    most: str = ""  # what a total outage burns at, where that is too little for the pair to alert

    @property
    def severity(self) -> str:
        return self.standing.pair.severity.value

    @property
    def severity_word(self) -> str | Promise:
        return slo_words.SEVERITIES[self.severity]

    @property
    def rule(self) -> str:
        return _("both > %(burn)s") % {"burn": f"{self.standing.pair.burn:g}×"}

    @property
    def tone(self) -> str:
        if self.alert is None and not self.standing.burning:
            return "plain"
        return "bad" if self.severity == "page" else "warn"


@dataclass(frozen=True, slots=True)
class Detail:
    """The chosen objective."""

    row: Row
    release: str
    pairs: Sequence[PairBars]
    figures: dict[str, Any]
    budget_rows: Sequence[charts.BudgetRow]
    burn_rows: Sequence[charts.BurnRow]
    burn_names: Sequence[str]
    heat_rows: Sequence[charts.HeatRow]
    alerts: Sequence[ObjectiveAlert]
    silences: Sequence[Silence]
    begins_late: bool  # the window does, of what was asked for
    bad: int  # requests from `slow_since` to `slow_until`
    slow: int | None  # those of them that the log has; None where only the log can tell
    slow_since: datetime
    slow_until: datetime
    now: datetime
    new_before: int | None  # so many others are counted first; None where it is counted, or took too long

    @property
    def objective(self) -> Objective:
        return self.row.objective

    @property
    def standing(self) -> Standing:
        return self.row.standing

    @property
    def sentence(self) -> str:
        return slo_words.sentence(self.objective)

    @property
    def scope(self) -> str:
        return slo_words.scope_text(self.objective, release=self.release)

    @property
    def refused(self) -> int | None:
        """Bad requests that were refused before they were forwarded; None where it is not known how many."""
        return None if self.slow is None else self.bad - self.slow

    @property
    def counts_no_refusals(self) -> bool:
        """They name no release: what was refused before it was forwarded was on its way to none."""
        return self.objective.threshold_seconds is None and self.objective.version_id is not None

    @property
    def wait_minutes(self) -> int:
        """Until its window is counted, where others are counted in earlier looks; 0 where it is in the next one."""
        looks = (self.new_before or 0) // NEW_AT_ONCE
        return ceil(looks * LOOK_SECONDS / MINUTE)

    @property
    def counted_until(self) -> datetime | None:
        """Where counting stands still since; None where it goes on."""
        tallied, end = self.objective.tallied_at, self.standing.as_of
        return tallied if self.objective.enabled and tallied is not None and end - tallied > STANDS_STILL else None

    @property
    def first_alert(self) -> ObjectiveAlert | None:
        return self.row.alerts[0] if self.row.alerts else None

    @property
    def today(self) -> bool:
        """Whether the alert opened so lately that the time of day says when."""
        alert = self.first_alert
        return alert is not None and (self.standing.as_of - alert.opened_at).total_seconds() < 12 * 3_600

    @property
    def rule(self) -> str:
        alert = self.first_alert
        pair = next((one for one in PAIRS if alert is not None and one.name == alert.pair), None)
        return "" if pair is None else slo_words.pair_text(pair)

    @property
    def exhausted(self) -> str:
        found = self.standing.exhausted
        if self.standing.budget.remaining is None:
            return "–"
        if found.used_up:
            return _("used up")
        return _("not at this rate") if found.seconds is None else slo_words.left_text(found.seconds)

    @property
    def exhausted_tone(self) -> str:
        found = self.standing.exhausted
        soon = found.used_up or (found.seconds is not None and found.seconds < 3 * 86_400)
        return "bad" if soon else ""

    @property
    def budget_left(self) -> int:
        return round(self.standing.budget.left)

    @property
    def budget_allowed(self) -> int:
        return round(self.standing.budget.allowed)

    @property
    def budget_tone(self) -> str:
        remaining = self.standing.budget.remaining
        if remaining is None:
            return "idle"
        return "bad" if remaining <= 0.1 else "warn" if remaining <= 0.5 else "good"


@dataclass(frozen=True, slots=True)
class Board:
    rows: Sequence[Row]
    as_of: datetime


def read_board(
    objectives: Sequence[Objective],
    *,
    now: datetime,
    standings: Mapping[UUID, Standing] | None = None,
) -> Board:
    """Five queries; two where `standings` are known. Worst first."""
    if standings is None:
        standings = slo.read_standings(objectives, now=now)
    alerts = slo.open_alerts(objectives)
    silences = list(Silence.objects.filter(starts_at__lte=now, ends_at__gt=now))
    rows = [Row(one, standings[one.pk], alerts.get(one.pk, []), is_silenced(one, silences)) for one in objectives]
    rows.sort(key=lambda row: row.order)
    return Board(rows, slo.as_of(now))


def read_detail(row: Row, span: charts.Span, *, now: datetime) -> Detail:
    """Nine queries more."""
    objective, standing = row.objective, row.standing
    # What the window has forgotten spent nothing of its budget.
    start = slo.window_start(objective, standing.as_of)
    begins_late = start > span.since
    if begins_late:
        span = charts.span_between(start, max(start, span.until), as_of=standing.as_of)
    budget, budget_rows = charts.budget_figure(objective, standing, now=now)
    burn, burn_rows = charts.burn_figure(objective, span)
    heat, heat_rows = charts.heat_figure(objective, span)
    since, until = span.since, _counted_until(objective, span, standing.as_of)
    series = slo.hour_counts if span.by_hour else slo.minute_series
    bad = sum(one.bad for one in series(objective, since=since, until=until))
    return Detail(
        row=row,
        release=_release(objective.version_id),
        pairs=[_bars(pair, row.alerts, objective.target) for pair in standing.pairs],
        figures={"budget": budget, "burn": burn, "heat": heat},
        budget_rows=budget_rows,
        burn_rows=burn_rows,
        burn_names=[line["name"] for line in burn["lines"]],
        heat_rows=heat_rows,
        alerts=list(slo.list_alerts().filter(objective=objective)[:20]),
        silences=list(slo.silences_over(objective, now=now)[:MOST_SILENCES]),
        begins_late=begins_late,
        bad=bad,
        slow=_in_log(objective, bad, since=since, until=until),
        slow_since=since,
        slow_until=until,
        now=now,
        new_before=slo.new_before(objective),
    )


def _counted_until(objective: Objective, span: charts.Span, end: datetime) -> datetime:
    """How far counts of the span and the log tell of the same: where counting stands still the log goes on."""
    tallied = objective.tallied_at
    if tallied is None or (objective.enabled and end - tallied <= STANDS_STILL):
        return span.until
    return max(span.since, min(span.until, slo.whole_hour(tallied) if span.by_hour else slo.as_of(tallied)))


def _in_log(objective: Objective, bad: int, *, since: datetime, until: datetime) -> int | None:
    """How many of the bad ones have a row in the log: those that were refused before they were forwarded have none."""
    if objective.threshold_seconds is not None or objective.version_id is not None or not bad:
        return bad
    if objective.tier:
        return None
    sums = latency_by_model(since=since, until=until, tenant_id=objective.tenant_id, of=())
    return min(bad, sum(one.faults for one in sums if objective.model in ("", one.model)))


def versions_of(names: Sequence[UUID]) -> dict[UUID, str]:
    """Names of releases by id."""
    rows = ModelVersion.objects.filter(pk__in=names).select_related("model")
    return {row.pk: f"{row.model.name} {row.name}" for row in rows}


def _release(version_id: UUID | None) -> str:
    return "" if version_id is None else versions_of([version_id]).get(version_id, str(version_id)[:8])


_LEAST, _MOST = 0.1, 100.0


def _scaled(burn: float) -> float:
    """On a scale from 0.1 to 100: 0 to 100."""
    value = min(_MOST, max(_LEAST, burn))
    return round(100 * (log10(value) - log10(_LEAST)) / (log10(_MOST) - log10(_LEAST)), 2)


def _bars(found: PairStanding, alerts: Sequence[ObjectiveAlert], target: float) -> PairBars:
    pair = found.pair
    fired = "bad" if pair.severity.value == "page" else "warn"

    def tone(burn: float) -> str:
        if burn <= pair.burn:
            return "good"
        return fired if found.burning else "idle"

    bars = [
        BurnBar(
            slo_words.window_text(seconds),
            slo_words.burn_text(burn),
            0.0 if not burn else _scaled(burn),
            _scaled(pair.burn),
            "idle" if burn is None else tone(burn),
        )
        for seconds, burn in ((pair.long_seconds, found.long), (pair.short_seconds, found.short))
    ]
    most = "" if can_fire(pair, target) else slo_words.burn_text(most_burn(target))
    return PairBars(found, bars, next((one for one in alerts if one.pair == pair.name), None), most)
