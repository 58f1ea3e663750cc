"""Second factors: checking what is typed in, and the audit rows of what is added and removed."""

from typing import Final

from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from allauth.mfa.utils import decrypt
from django.db import models, transaction
from django.utils.crypto import constant_time_compare

from core.sealing import Unreadable
from tenants.actor import Actor
from tenants.models import User
from tenants.services.audit import record_audit

_LAST_COUNTER: Final = "last_counter"


@transaction.atomic
def accept_code(user: User, code: str) -> Authenticator | None:
    """The authenticator app or the recovery codes that `code` belongs to; it is used up with that.

    Which codes of an app were used stands beside its secret, not in a cache that may forget: a code that was read
    over a shoulder opens nothing, also while Valkey is away.
    """
    code = code.replace(" ", "").replace("-", "")
    found = Authenticator.objects.select_for_update().filter(user=user).exclude(type=Authenticator.Type.WEBAUTHN)
    for authenticator in found.order_by("type"):
        try:
            if authenticator.type == Authenticator.Type.TOTP:
                accepted = _accept_totp(authenticator, code)
            else:
                accepted = RecoveryCodes(authenticator).validate_code(code)
        except Unreadable:  # the secret key was changed: only a reset helps
            continue
        if accepted:
            authenticator.user = user
            return authenticator
    return None


def totp_counter(secret: str, code: str) -> int | None:
    """The step of time that `code` is of, within the tolerance; None for a wrong code."""
    for counter in yield_hotp_counters_from_time():
        if constant_time_compare(format_hotp_value(hotp_value(secret, counter)), code):
            return int(counter)
    return None


def _accept_totp(authenticator: Authenticator, code: str) -> bool:
    counter = totp_counter(decrypt(authenticator.data["secret"]), code)
    if counter is None or counter <= authenticator.data.get(_LAST_COUNTER, 0):
        return False
    authenticator.data[_LAST_COUNTER] = counter
    authenticator.save(update_fields=["data"])
    return True


def record_second_factor(verb: str, user: models.Model, kind: str, *, actor: Actor) -> None:
    """`verb` is added, removed or renewed; in the transaction that did it."""
    record_audit(f"second_factor.{verb}", subject=user, actor=actor, after={"kind": kind})
