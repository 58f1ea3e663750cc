"""Will it fit, and why not: placement decided without doing anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from django.utils import timezone

from gpupool.models import ModelVersion
from gpupool.policies import topology
from gpupool.policies.estimate import CannotEstimate, Estimate
from gpupool.policies.lease import describe_bytes
from gpupool.policies.placement import (
    DeviceView,
    Fits,
    Need,
    Placed,
    Placement,
    Preempt,
    Unfit,
    Unplaced,
    judge_all,
    place,
)
from gpupool.reads.estimates import Asked, asked_of, corrected, estimate_asked
from gpupool.reads.placement import need_of, read_devices, read_quotas, read_reservations

MOST_DEVICES: Final = 2_000
"""Devices of which the verdict is told one by one."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. None: as the version has it; `memory_bytes` None: as it claims, or as estimated."""

    need: Need
    asked: Asked
    version: ModelVersion | None = None
    memory_bytes: int | None = None

    def with_need(self, **changes: Any) -> "Question":
        """The same with other fields of the need."""
        return replace(self, need=replace(self.need, **changes))

    @property
    def as_it_is(self) -> bool:
        """Whether it is the version's own way of running, of which measurements tell."""
        return self.version is not None and self.asked == asked_of(self.version)


@dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """One device's verdict; `chosen` where the instance would go there."""

    device_id: UUID
    node: str
    stable_id: str
    name: str
    simulated: bool
    memory_bytes: int | None
    claimed_bytes: int
    fits: bool
    chosen: bool
    code: str
    reason: str  # a sentence's end; empty for one that fits
    score: float | None
    scores: Mapping[str, float]  # by scorer, 0 to 1
    left_bytes: int | None

    @property
    def free_bytes(self) -> int | None:
        """What can be claimed of it now."""
        return None if self.memory_bytes is None else max(0, self.memory_bytes - self.claimed_bytes)


@dataclass(frozen=True, slots=True)
class Answer:
    """`verdict`: fits, preempts (others would have to go), waits or does_not_fit; `reason` in a sentence."""

    verdict: str
    reason: str
    memory_bytes: int | None  # claimed of each device
    need: Need
    estimate: Estimate | None
    estimate_reason: str  # why there is none
    notes: tuple[str, ...]
    devices: tuple[DeviceAnswer, ...]
    device_count: int
    fitting: int
    preempted: tuple[UUID, ...] = ()
    borrowed_from: tuple[str, ...] = ()
    nearness: float | None = None


def answer(question: Question) -> Answer:
    """Nothing is changed and nothing is kept: the next moment may decide otherwise."""
    made, why = _estimated(question)
    memory = question.memory_bytes or _own_claim(question) or (made.device_bytes if made else 0)
    need = replace(question.need, memory_bytes=memory)
    if made is not None and made.offloaded and need.kind == "gpu" and not need.host_memory_bytes:
        need = replace(need, host_memory_bytes=made.host.total)
    notes = _notes(made, memory)
    if not memory:
        return Answer("does_not_fit", f"Nobody says what it claims. {why}", None, need, made, why, notes, (), 0, 0)
    devices = read_devices()
    quotas = [quota for quota in read_quotas(timezone.now()) if quota.counts(need)]
    reservations = read_reservations()
    outcome = place(devices, need, quotas=quotas, reservations=reservations)
    verdicts = judge_all(devices, need, quotas=quotas, reservations=reservations)
    told = _devices(devices, verdicts, outcome)
    word, reason, preempted, borrowed, nearness = _outcome(outcome, devices)
    return Answer(
        verdict=word,
        reason=reason,
        memory_bytes=memory,
        need=need,
        estimate=made,
        estimate_reason=why,
        notes=notes,
        devices=told[:MOST_DEVICES],
        device_count=len(told),
        fitting=sum(one.fits for one in told),
        preempted=preempted,
        borrowed_from=borrowed,
        nearness=nearness,
    )


def of_version(version: ModelVersion, **changes: Any) -> Question:
    """The question about a version; `changes` are fields of Asked that are asked otherwise."""
    asked = replace(asked_of(version), **changes)
    need = replace(need_of(version), devices=asked.devices, kind=asked.device_kind)
    return Question(need=need, asked=asked, version=version)


def _estimated(question: Question) -> tuple[Estimate | None, str]:
    try:
        made = estimate_asked(question.asked)
    except CannotEstimate as error:
        return None, str(error)
    if question.version is not None and question.as_it_is:
        made = corrected(made, question.version)
    return made, ""


def _own_claim(question: Question) -> int:
    """What the version claims, where it is asked about as it is run."""
    return question.need.memory_bytes if question.version is not None and question.as_it_is else 0


def _notes(made: Estimate | None, memory: int) -> tuple[str, ...]:
    if made is None:
        return ()
    notes = made.notes
    if memory < made.device_bytes:
        notes += (
            f"It claims {describe_bytes(memory)} of each device, and {describe_bytes(made.device_bytes)} are "
            "estimated: it may run out of memory.",
        )
    return notes


def _outcome(
    outcome: Placement, devices: Sequence[DeviceView]
) -> tuple[str, str, tuple[UUID, ...], tuple[str, ...], float | None]:
    match outcome:
        case Placed(device_ids=chosen, nearness=nearness, borrowed_from=lent):
            names = {device.device_id: device.label for device in devices}
            where = ", ".join(names[one] for one in chosen)
            near = f", connected {topology.describe(nearness)}" if len(chosen) > 1 else ""
            borrowed = f" It borrows what is reserved for {', '.join(lent)}." if lent else ""
            return "fits", f"It would go to {where}{near}.{borrowed}", (), lent, nearness if len(chosen) > 1 else None
        case Preempt(instances=gone, reason=reason):
            return "preempts", reason, gone, (), None
        case Unplaced(reason=reason, waits_for=waits_for):
            return ("waits" if waits_for else "does_not_fit"), reason, (), (), None


def _devices(
    devices: Sequence[DeviceView], verdicts: Sequence[Fits | Unfit], outcome: Placement
) -> tuple[DeviceAnswer, ...]:
    chosen = outcome.device_ids if isinstance(outcome, Placed | Preempt) else ()
    told = [
        _device(device, verdict, chosen=device.device_id in chosen)
        for device, verdict in zip(devices, verdicts, strict=True)
    ]
    return tuple(
        sorted(told, key=lambda one: (not one.chosen, not one.fits, -(one.score or 0.0), one.node, one.stable_id))
    )


def _device(device: DeviceView, verdict: Fits | Unfit, *, chosen: bool) -> DeviceAnswer:
    fits = isinstance(verdict, Fits)
    return DeviceAnswer(
        device_id=device.device_id,
        node=device.node.name if device.node else "",
        stable_id=device.stable_id,
        name=device.name,
        simulated=device.node is not None and device.node.simulated,
        memory_bytes=device.memory_bytes,
        claimed_bytes=device.claimed_bytes,
        fits=fits,
        chosen=chosen,
        code="" if isinstance(verdict, Fits) else verdict.code,
        reason="" if isinstance(verdict, Fits) else verdict.reason,
        score=verdict.score if isinstance(verdict, Fits) else None,
        scores=dict(verdict.scores) if isinstance(verdict, Fits) else {},
        left_bytes=verdict.left_bytes if isinstance(verdict, Fits) else None,
    )
