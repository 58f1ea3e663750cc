"""Before instances of a version are started: how many of them would find a place now, and why the others would not."""

from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from django.utils import timezone

from gpupool.models import Instance, InstanceDesire, InstanceState, ModelVersion
from gpupool.policies.placement import Placed, Round
from gpupool.reads.dry_run import Answer, answer, of_version
from gpupool.reads.placement import read_devices, read_quotas, read_reservations

MOST_TRIED: Final = 32
"""Instances that are placed in the trial; more are not counted one by one."""


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """`answer` is of the next instance; `placed` of `tried` would go somewhere at once, without sending others off."""

    answer: Answer
    wanted: int
    tried: int
    placed: int
    running: int  # instances that the version has now, beside those that tenants acquired

    @property
    def verdict(self) -> str:
        """As of a dry run; `waits` where some fit and others do not."""
        if self.wanted and 0 < self.placed < self.tried:
            return "waits"
        return self.answer.verdict


def answer_start(version: ModelVersion, more: int) -> StartAnswer:
    """Would `more` instances find places now? Nothing is claimed and nothing starts."""
    question = of_version(version)
    first = answer(question)
    rows = Instance.objects.filter(version=version, attached=False, pooled=False)
    running = rows.exclude(state=InstanceState.STOPPED).exclude(desire=InstanceDesire.STOPPED).count()
    tried = min(max(more, 0), MOST_TRIED)
    placed = 0
    if tried == 1 or first.verdict != "fits":
        placed = int(first.verdict == "fits" and tried > 0)
    elif tried:
        now = timezone.now()
        trial = Round(read_devices(), quotas=read_quotas(now), reservations=read_reservations(), now=now.timestamp())
        for _ in range(tried):
            if not isinstance(trial.place(first.need, holder=uuid4(), may_preempt=False), Placed):
                break
            placed += 1
    return StartAnswer(first, more, tried, placed, running)
