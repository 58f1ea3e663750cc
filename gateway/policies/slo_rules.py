"""Prometheus's rules for objectives: the same counts from the same histograms as the pages, as recording and alerting
rules.

Prometheus knows models and nothing of tenants, tiers and releases: objectives by these are counted by Gatehouse alone.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.policies.slo import DAY, HOUR, MINUTE, PAIRS, WINDOWS, Kind, bound_of

_HISTOGRAMS: Final = {
    Kind.TTFT: "gen_ai_server_time_to_first_token_seconds",
    Kind.TPOT: "gen_ai_server_time_per_output_token_seconds",
    Kind.QUEUE_WAIT: "gatehouse_request_queue_seconds",
}
_SLOW_WINDOW: Final = 6 * HOUR
"""Windows from here on are looked at less often: they read days of samples."""
_SLOW_INTERVAL: Final = 2 * MINUTE
"""Well below the five minutes after which Prometheus forgets a sample: alerts read what these rules wrote last, and
would end and begin anew where that is gone for a moment."""


@dataclass(frozen=True, slots=True)
class RuleObjective:
    """One objective as rules know it. `model`: None: each model for itself; "": all models together."""

    name: str
    kind: Kind
    target: float
    threshold_seconds: float | None
    window_days: int
    model: str | None


def rules_text(objectives: Iterable[RuleObjective], *, head: str) -> str:
    """A file of rules for `promtool check rules`. `head`: lines of comment."""
    known = list(objectives)
    fast, slow = list[str](), list[str]()
    for one in known:
        for window in dict.fromkeys((*WINDOWS, one.window_days * DAY)):
            (fast if window < _SLOW_WINDOW else slow).extend(_window(one, window))
    attained = [line for one in known for line in _attained(one)]
    alerts = [line for pair in PAIRS for line in _alert(pair.name)]
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    lines += ["groups:"]
    if not known:
        return "\n".join([*lines[:-1], "groups: []"]) + "\n"
    lines += ["  - name: gatehouse-slo-fast", "    interval: 30s", "    rules:", *fast]
    lines += [
        "  - name: gatehouse-slo-slow",
        f"    interval: {window_word(_SLOW_INTERVAL)}",
        "    rules:",
        *slow,
        *attained,
    ]
    lines += ["  - name: gatehouse-slo-alerts", "    interval: 30s", "    rules:", *alerts]
    return "\n".join(lines) + "\n"


def window_word(seconds: int) -> str:
    """3600 as Prometheus writes it: 1h."""
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def bad_and_total(one: RuleObjective, window: str) -> tuple[str, str]:
    """Expressions for the bad requests of a window, and for all."""
    by = "sum by (model) " if one.model is None else "sum "
    selected = "" if one.model is None or one.model == "" else f"model={json.dumps(one.model, ensure_ascii=False)}"

    def increase(metric: str, *matchers: str) -> str:
        inside = ", ".join(part for part in (selected, *matchers) if part)
        return f"{by}(increase({metric}{'{' + inside + '}' if inside else ''}[{window}]))"

    if one.kind is Kind.AVAILABILITY:
        served = increase("gatehouse_requests_total", 'outcome!="cancelled"')
        refused = increase("gatehouse_faults_total", 'stage="refused"', *(('model!=""',) if one.model is None else ()))
        # What never happened has no series, and would make the sum unknown.
        total = f"({served} + ({refused} or {served} * 0)) or {refused}"
        bad = increase("gatehouse_faults_total", *(('model!=""',) if one.model is None else ()))
        return f"({bad}) or ({served} * 0)", total
    assert one.threshold_seconds is not None
    metric = _HISTOGRAMS[one.kind]
    total = increase(f"{metric}_count")
    within = increase(f"{metric}_bucket", f'le="{bound_of(one.kind, one.threshold_seconds)!r}"')
    return f"{total} - {within}", total


def burn_expression(one: RuleObjective, window: str) -> str:
    """How many times faster than allowed the budget goes; nothing where there were no requests."""
    bad, total = bad_and_total(one, window)
    return f"({bad}) / (({total}) > 0) / {1 - one.target:.6g}"


def attained_expression(one: RuleObjective) -> str:
    """The share of good requests in the whole window; nothing where there were no requests."""
    bad, total = bad_and_total(one, window_word(one.window_days * DAY))
    return f"1 - ({bad}) / (({total}) > 0)"


def _labels(one: RuleObjective) -> list[str]:
    labels = {"objective": one.name, "indicator": one.kind.value}
    if one.model:
        labels["model"] = one.model
    return [
        "        labels:",
        *(f"          {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in labels.items()),
    ]


def _window(one: RuleObjective, seconds: int) -> Iterator[str]:
    window = window_word(seconds)
    yield f"      - record: gatehouse_slo:burn_rate:{window}"
    yield f"        expr: {json.dumps(burn_expression(one, window), ensure_ascii=False)}"
    yield from _labels(one)


def _attained(one: RuleObjective) -> Iterator[str]:
    yield "      - record: gatehouse_slo:attained"
    yield f"        expr: {json.dumps(attained_expression(one), ensure_ascii=False)}"
    yield from [*_labels(one), f'          window: "{one.window_days}d"']


def _alert(name: str) -> Iterator[str]:
    pair = next(one for one in PAIRS if one.name == name)
    long, short = window_word(pair.long_seconds), window_word(pair.short_seconds)
    page = pair.severity.value == "page"
    yield f"      - alert: GatehouseErrorBudgetBurns{'Fast' if page else 'Slowly'}"
    burn = "gatehouse_slo:burn_rate:"
    yield f"        expr: {burn}{long} > {pair.burn:g} and {burn}{short} > {pair.burn:g}"
    yield "        labels:"
    yield f"          severity: {pair.severity.value}"
    yield f"          pair: {pair.name}"
    yield "        annotations:"
    yield (
        '          summary: "{{ $labels.objective }} burns its error budget at '
        '{{ $value | printf \\"%.1f\\" }} times the allowed rate"'
    )
    yield (
        f'          description: "Over {long} and over {short} the error budget of {{{{ $labels.objective }}}} '
        f'{{{{ $labels.model }}}} goes more than {pair.burn:g} times faster than it may."'
    )
