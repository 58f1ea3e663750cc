"""The words that scripts need, sent along with the page in the reader's language."""

from django.conf import settings
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from dashboard import labels


def script_strings() -> dict[str, object]:
    """Evaluated in each request, because the language is the request's."""
    return {
        "unknown": _("unknown"),
        "seconds": _("%(n)s s"),
        "minutes": _("%(n)s min"),
        "hours": _("%(n)s h"),
        "days": _("%(n)s d"),
        "copied": _("Copied"),
        "live": _("Live"),
        "connecting": _("Connecting"),
        "reconnecting": _("Reconnecting"),
        "stale": _("Stale"),
        "paused": _("Paused"),
        "denied": _("No permission"),
        "live_why": {
            "signed_out": _("You were logged out."),
            "second_factor": _("Set up a second factor first."),
            "role": _("Your role does not let you watch this."),
            "membership": _("You are not a member of this tenant."),
            "suspended": _("This tenant is suspended: nothing happens in it."),
            "unknown": _("There is nothing to watch here. Reload the page."),
            "too_many": _("This page watches too much at once. Reload it."),
            "bad_message": _("This page is out of date. Reload it."),
            "gone": _("It no longer exists."),
            "database": _("The database does not answer."),
            "crowded": _("Too much is watched at once. This comes back once others watch less."),
            "broken": _("The server could not read it. An operator finds why in its log."),
        },
        "live_gap": _("More came here than could be told. Reload the page to see all of it."),
        "live_standing": reverse("live-standing"),
        "currency": settings.GATEHOUSE.currency,
        "zone": str(timezone.get_current_timezone()),
        "as_of": _("as of %(time)s · times in %(zone)s"),
        "failed": _("The server could not be reached. Try again."),
        "refused": _("This is no longer possible. Reload the page to see why."),
        "nothing_found": _("Nothing is called so."),
        "found": _("%(n)s found"),
        "kinds": {
            "page": pgettext("palette", "Pages"),
            "tenant": _("Tenants"),
            "model": _("Models"),
            "node": _("Nodes"),
            "instance": _("Instances"),
            "key": _("API keys"),
        },
        "words": {
            "instance": {key: str(value) for key, value in labels.INSTANCE_STATES.items()},
            "node": {key: str(value) for key, value in labels.NODE_STATES.items()},
            "health": {key: str(value) for key, value in labels.DEVICE_HEALTH.items()},
            "outcome": {key: str(value) for key, value in labels.OUTCOMES.items()},
            "audit_actor": {key: str(value) for key, value in labels.AUDIT_ACTORS.items()},
            "stage": {key: str(value) for key, value in labels.STAGES.items()},
        },
        "tones": dict(labels.TONES),
    }
