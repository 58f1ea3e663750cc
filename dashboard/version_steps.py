"""What can be done with a version on its page, by the state that it is in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from gpupool import services
from gpupool.admission_settings import admission_settings
from gpupool.models import ModelVersion
from gpupool.policies.admission import Stage, step_fault
from tenants.actor import Actor


@dataclass(frozen=True, slots=True)
class VersionStep:
    """One action. `act` None: it has a form of its own."""

    name: str
    url: str  # name of its address
    label: str | Promise
    icon: str
    to: Stage | None = None
    act: Callable[[UUID, Actor], ModelVersion] | None = None
    done: str | Promise = ""  # with %(version)s
    primary: bool = False
    danger: bool = False


STEPS: Final[Mapping[str, VersionStep]] = {
    one.name: one
    for one in (
        VersionStep(
            "admit", "console-version-admit", gettext_lazy("Admit"), "shield-check", Stage.ADMITTED, primary=True
        ),
        VersionStep(
            "serve",
            "console-version-step",
            gettext_lazy("Serve"),
            "rocket",
            Stage.SERVING,
            lambda pk, actor: services.serve_version(pk, actor=actor),
            gettext_lazy("%(version)s takes requests within a second."),
            primary=True,
        ),
        VersionStep("switch", "console-version-switch", gettext_lazy("Serve instead of…"), "replace", Stage.SERVING),
        VersionStep("replicas", "console-version-replicas", gettext_lazy("Replicas"), "adjustments"),
        VersionStep(
            "reopen",
            "console-version-step",
            gettext_lazy("Back to draft"),
            "pencil",
            Stage.DRAFT,
            lambda pk, actor: services.reopen_version(pk, actor=actor),
            gettext_lazy("%(version)s is a draft again."),
        ),
        VersionStep(
            "retire",
            "console-version-step",
            gettext_lazy("Retire"),
            "x",
            Stage.RETIRED,
            lambda pk, actor: services.retire_version(pk, actor=actor),
            gettext_lazy("%(version)s is retired; its instances are drained."),
            danger=True,
        ),
    )
}


def possible_steps(version: ModelVersion, *, switchable: bool) -> list[VersionStep]:
    """Those that its state and this installation's rule allow; services have the last word.

    `switchable`: another version serves that it could take the place of.
    """
    rule = admission_settings().rule
    found: list[VersionStep] = []
    for one in STEPS.values():
        if one.name == "switch" and not switchable:
            continue
        if one.name == "replicas":
            if version.artefact_uri and version.state != Stage.RETIRED:
                found.append(one)
            continue
        assert one.to is not None  # all others lead somewhere
        if version.state == one.to or (one.name == "admit" and version.state == Stage.SERVING):
            continue
        fault = step_fault(
            Stage(version.state),
            one.to,
            rule=rule,
            admitted=version.admitted_at is not None,
            has_artefact=bool(version.artefact_uri),
        )
        if fault is None:
            found.append(one)
    return found
