"""A version's way from draft to retired, as a table, and what it takes to be admitted."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Stage(StrEnum):
    """Where a version is in its life; the values are those of its row."""

    DRAFT = "draft"  # described, can still be changed
    ADMITTED = "admitted"  # checked; its instances may load, and take no requests yet
    SERVING = "serving"
    RETIRED = "retired"


class Rule(StrEnum):
    """What this installation asks of a version before it serves."""

    OFF = "off"  # nothing: a version may serve as soon as it is described; what is given to admission is checked
    REQUIRED = "required"  # manifest and card; a signature, too, where there is a trusted root to check it against


ALLOWED: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.DRAFT: frozenset({Stage.ADMITTED, Stage.RETIRED}),
    Stage.ADMITTED: frozenset({Stage.DRAFT, Stage.SERVING, Stage.RETIRED}),
    Stage.SERVING: frozenset({Stage.RETIRED, Stage.ADMITTED}),  # the latter where it was rolled back
    Stage.RETIRED: frozenset({Stage.ADMITTED, Stage.SERVING}),
}
WITHOUT_ADMISSION: Final[Mapping[Stage, frozenset[Stage]]] = {Stage.DRAFT: frozenset({Stage.SERVING})}


def first_stage(rule: Rule, *, has_artefact: bool) -> Stage:
    """Where a new version begins. Of an engine that somebody else runs there are no weights here to look at."""
    return Stage.DRAFT if rule is Rule.REQUIRED and has_artefact else Stage.SERVING


def step_fault(before: Stage, after: Stage, *, rule: Rule, admitted: bool, has_artefact: bool = True) -> str | None:
    """Why a version cannot go from one stage to another, as a sentence; None where it can."""
    free = rule is Rule.OFF or not has_artefact
    allowed = ALLOWED[before] | (WITHOUT_ADMISSION.get(before, frozenset()) if free else frozenset())
    if after not in allowed:
        if before is Stage.DRAFT and after is Stage.SERVING:
            return "The version is a draft: admit it first."
        return f"A version that is {before} cannot become {after}."
    if after is Stage.SERVING and not admitted and not free:
        return "The version was never admitted, which this installation asks for: admit it first."
    return None


def missing(*, manifest: bool, card: bool, signature: bool, rule: Rule, trusted_root: bool) -> list[str]:
    """What an admission still needs, as sentences."""
    if rule is Rule.OFF:
        return []
    faults = []
    if not manifest:
        faults.append("There is no manifest: `manage.py manifest PATH` on a node with the artefact prints it.")
    if not card:
        faults.append("There is no model card (model-card.yaml).")
    if trusted_root and not signature:
        faults.append("There is no signature: this installation has a trusted root, so a Sigstore bundle is needed.")
    return faults
