"""Rules for Prometheus: of this installation's own objectives, or those that come with Gatehouse."""

from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand

from gateway.policies.slo import Kind
from gateway.policies.slo_rules import RuleObjective, rules_text
from gateway.reads.slo import list_objectives
from tenants.policies.tiers import objectives_of

_SHIPPED_HEAD: Final = """\
Rules for Prometheus that come with Gatehouse: for every model what the silver tier promises.
Made by `manage.py slo_rules --shipped`; those of your own objectives by `manage.py slo_rules`."""
_OWN_HEAD: Final = """\
Rules for Prometheus, made by `manage.py slo_rules` from the objectives of this installation."""


def shipped_objectives() -> list[RuleObjective]:
    """The silver tier's, for each model by itself."""
    silver = objectives_of("silver")
    return [
        RuleObjective("ttft-silver", Kind.TTFT, 0.99, silver.ttft_p99_seconds, 30, None),
        RuleObjective("availability-silver", Kind.AVAILABILITY, silver.availability, None, 30, None),
    ]


def shipped_text() -> str:
    """What stands in deploy/prometheus/gatehouse-slo.rules.yml."""
    return rules_text(shipped_objectives(), head=_SHIPPED_HEAD)


def own_text() -> str:
    """Of the objectives that are enabled; those by tenant, tier or release are named, and left out."""
    known, left_out = [], []
    for one in list_objectives().filter(enabled=True).order_by("pk"):
        if one.tenant_id is not None or one.tier or one.version_id is not None:
            left_out.append(f"  {one.name}")
            continue
        known.append(
            RuleObjective(one.name, Kind(one.kind), one.target, one.threshold_seconds, one.window_days, one.model)
        )
    head = _OWN_HEAD
    if left_out:
        head += "\nPrometheus knows no tenants, tiers and releases. Gatehouse alone counts for:\n" + "\n".join(left_out)
    return rules_text(known, head=head)


class Command(BaseCommand):
    """Writes them to the standard output."""

    help = "Write recording and alerting rules for Prometheus from this installation's objectives by model."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--shipped", action="store_true", help="Those that come with Gatehouse instead.")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(shipped_text() if options["shipped"] else own_text(), ending="")
