"""An operator's own answers to error codes."""

from django.db import transaction

from core.epochs import Section
from gpupool.models import XidRule
from gpupool.policies.xid import CATALOGUE, Verb
from gpupool.services.changes import Changes
from tenants.actor import Actor
from tenants.services import InvalidInput, record_audit

_CHOICES = frozenset(Verb) - {Verb.FOLLOW_TEXT, Verb.MERGE_48, Verb.CANCEL_163}
"""Those three mean one code each, and nothing for another."""


@transaction.atomic
def set_xid_rule(code: int, *, action: str, note: str = "", provenance: str = "operator", actor: Actor) -> XidRule:
    """Answer a code otherwise than the catalogue does. Raises InvalidInput for an action that is none."""
    fixed = CATALOGUE[code].verb if code in CATALOGUE else None
    if action not in _CHOICES and action != fixed:
        raise InvalidInput("answer", f"An answer is one of {', '.join(sorted(_CHOICES))}.")
    rule = XidRule.objects.select_for_update().filter(code=code).first()
    before = {} if rule is None else {"action": rule.action, "provenance": rule.provenance}
    if rule is None:
        rule = XidRule(code=code)
    rule.action, rule.note, rule.provenance = action, note, provenance or "operator"
    rule.save()
    after = {"code": code, "action": action, "provenance": rule.provenance}
    record_audit("xid_rule.set", subject=rule, actor=actor, before=before, after=after)
    _tell(rule)
    return rule


@transaction.atomic
def drop_xid_rule(code: int, *, actor: Actor) -> None:
    """The catalogue's answer counts again. Raises XidRule.DoesNotExist."""
    rule = XidRule.objects.select_for_update().get(code=code)
    record_audit("xid_rule.dropped", subject=rule, actor=actor, before={"code": code, "action": rule.action})
    _tell(rule)
    rule.delete()


def _tell(rule: XidRule) -> None:
    changes = Changes()
    changes.add(Section.POOL, rule.pk)
    changes.publish()
