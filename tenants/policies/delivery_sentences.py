"""Why messages were not delivered, as webhooks' pages and mails about them have it.

Said in English by core.outbound and tenants.services (deliveries, senders, webhooks), and kept so. Mails translate by
the catalogue of the pages too: each sentence is written once, and has one translation.
"""

from collections.abc import Callable
from functools import cache
from typing import Final

from core.sentences import DEEPEST, LONGEST, Sentences, fits
from core.sentences import gettext_noop as _

ADDRESSES: Final = (
    _("The address has blanks or control characters, or over %(most)s characters."),
    _("The address is not a URL."),
    _("The address begins with https://."),
    _("The address is not HTTP."),
    _("The address names no host."),
    _("The address carries a user name or password."),
    _("The host name is not valid."),
    _("The address is inside this network."),
)
"""What is wrong with an address that a person typed in: services refuse it so, and deliveries judge it again."""

SENTENCES: Final = (
    _("Disabled by hand."),
    _("It answered 410: nobody is there any more."),
    _("Every attempt failed for %(days)s days, the last with: %(why)s"),
    _("It was given up after a day of attempts."),
    _("It could not be sent."),
    _("It answered %(status)s."),
    _("It answered %(status)s; redirects are not followed."),
    _("The name %(host)s was not resolved within %(seconds)s s."),
    _("The name %(host)s cannot be resolved."),
    _("The name %(host)s stands for an address inside this network."),
    _("%(host)s did not answer within %(seconds)s s."),
    _("%(host)s did not answer in HTTP."),
    _("No connection to %(host)s: %(text)s."),
    _("The connection to %(host)s broke: %(text)s."),
    _("The answer is compressed, which was not asked for."),
    _("The answer is larger than %(size)s bytes."),
    _("The answer was cut off."),
    _("There is nobody to send it to any more."),
    _("A header has a line break in it."),
)


def delivery_said(reason: str, translate: Callable[[str], str], *, deep: int = 0) -> str:
    """What was said, `translate`d sentence by sentence; what is not known stays as it was said."""
    found = _sentences().found(reason, fits=fits) if len(reason) <= LONGEST and deep <= DEEPEST else None
    if found is None:
        return reason
    sentence, values = found
    return translate(sentence.text) % {
        name: delivery_said(value, translate, deep=deep + 1) if name == "why" else value
        for name, value in values.items()
    }


@cache
def _sentences() -> Sentences:
    return Sentences((*SENTENCES, *ADDRESSES))
