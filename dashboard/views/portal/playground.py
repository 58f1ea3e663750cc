"""Portal: a conversation with one model or two side by side, asked as any application asks.

The page never has a key. Its questions come here with the person's session and a form's token; from here they go to the
gateway's door with a key of short life that is the person's own (tenants.services.playground).
"""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from dashboard.access import PortalAccess, portal_page
from dashboard.error_words import words_beside_english
from dashboard.playground_door import ask_gateway
from dashboard.reads.portal_models import list_models, state_of, versions_priced
from tenants.actor import user_actor
from tenants.policies.roles import Action, Object
from tenants.services.playground import playground_secret


@portal_page
def page(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    now = timezone.now()
    rows, told = list_models(access.tenant, now)
    models = [row for row in rows.order_by("name") if told[row.pk].granted and "infer" in told[row.pk].actions]
    models.sort(key=lambda row: (state_of(row) != "ready", row.name))
    names = [row.name for row in models]
    wanted = request.GET.get("model", "")
    chosen = wanted if wanted in names else names[0] if names else ""
    return render(
        request,
        "portal/playground.html",
        {
            "access": access,
            "models": [(row.name, state_of(row), row.made_up) for row in models],
            "chosen": chosen,
            "beside": next((name for name in names if name != chosen), chosen),
            "may_play": _may_play(access),
            "facts": {
                "base_url": f"{settings.GATEHOUSE.public_relay_url}/v1",
                "currency": settings.GATEHOUSE.currency,
                "prices": {
                    row.name: None
                    if row.input_micros is None
                    else [row.input_micros, row.cached_micros, row.output_micros, row.request_micros]
                    for row in models
                },
                "by_version": versions_priced(names, access.tenant, now),
                "requests": reverse("portal-requests", args=[access.tenant.slug]),
                "words": _words(access),
            },
        },
    )


@portal_page
@require_POST
def chat(request: HttpRequest, access: PortalAccess) -> HttpResponseBase:
    """The gateway's answer to an OpenAI chat, as it comes."""
    access.require(Action.CREATE, Object.KEY)
    secret = playground_secret(access.tenant, access.user, now=timezone.now(), actor=user_actor(access.user.pk))
    return ask_gateway(request, secret)


def _may_play(access: PortalAccess) -> bool:
    """Those who may make a key may ask with one."""
    return access.may_create_keys


def _words(access: PortalAccess) -> dict[str, str | dict[str, str]]:
    refused = _("You are no longer logged in, or this page is too old. Reload it.")
    if access.viewing is not None:
        refused = _("You are looking as %(name)s: nothing can be changed until you end it.") % {"name": access.user}
    return {
        "none": _("Nothing was asked yet. Below each answer stands how fast it came and what it cost."),
        "you": _("You"),
        "system": _("System"),
        "thinking": _("Thinking"),
        "waiting": _("Waiting for the first token…"),
        "stopped": _("Stopped."),
        "cut": _("The answer was cut off at the most tokens."),
        "empty": _("The model said nothing."),
        "ttft": _("first token %(time)s ms"),
        "tpot": _("%(time)s ms a token"),
        "tokens": _("%(input)s in, %(output)s out"),
        "no_price": _("no price is set"),
        "request": _("request %(id)s"),
        "retry": _("Try again in %(seconds)s s."),
        "by_version": _("by version: see the request"),
        "unreachable": _("The gateway did not answer. Whether the question reached it, the requests’ page tells."),
        "broken": _("The connection ended before the answer did."),
        "session": refused,
        "errors": words_beside_english(),
        "number": _("%(name)s: give a number from %(low)s to %(high)s."),
    }
