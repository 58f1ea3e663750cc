"""What one key used, day by day and model by model, from rollups."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum

from tenants.models import ApiKey, RefusalMinute
from tenants.reads.usage import Only, sum_usage


@dataclass(frozen=True, slots=True)
class ModelLine:
    model: str
    requests: int
    failures: int
    tokens: int
    cost_micros: int


@dataclass(frozen=True, slots=True)
class KeyUsed:
    """Tokens by bucket, and sums by model, most first."""

    by_day: Sequence[int]
    models: Sequence[ModelLine]
    limited: int  # requests that a limit refused

    @property
    def requests(self) -> int:
        return sum(line.requests for line in self.models)

    @property
    def tokens(self) -> int:
        return sum(line.tokens for line in self.models)

    @property
    def cost_micros(self) -> int:
        return sum(line.cost_micros for line in self.models)

    @property
    def failed_share(self) -> float | None:
        failed = sum(line.failures for line in self.models)
        return failed / self.requests if self.requests else None


def read_key_usage(key: ApiKey, *, starts: Sequence[datetime], until: datetime) -> KeyUsed:
    """Two queries."""
    rows = sum_usage(
        [key.tenant_id],
        starts=starts,
        until=until,
        by=["bucket", "model"],
        sums=["requests", "failures", "input_tokens", "output_tokens", "cost_micros"],
        only=Only(key_id=key.pk),
    )
    by_day = [0] * len(starts)
    sums: dict[str, list[int]] = {}
    for row in rows:
        tokens = row["input_tokens"] + row["output_tokens"]
        by_day[row["bucket"]] += tokens
        of_model = sums.setdefault(row["model"], [0, 0, 0, 0])
        for place, units in enumerate((row["requests"], row["failures"], tokens, row["cost_micros"])):
            of_model[place] += units
    models = [ModelLine(name, *units) for name, units in sums.items()]
    refused = RefusalMinute.objects.filter(
        tenant_id=key.tenant_id, key_id=key.pk, minute__gte=starts[0], minute__lt=until, status=429
    ).aggregate(n=Sum("refusals"))["n"]
    return KeyUsed(by_day, sorted(models, key=lambda line: (-line.tokens, line.model)), refused or 0)
