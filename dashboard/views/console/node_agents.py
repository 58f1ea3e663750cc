"""Console: who speaks for a node: making one, the token of its agent, and a machine that does not come back."""

import shlex
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard.access import console_page
from dashboard.forms import NodeForm
from dashboard.refusals import tried
from dashboard.sheets import leave, posted, sheet
from dashboard.templatetags.gatehouse import duration_text
from dashboard.views.console.nodes import find_node, frame_of, operator_of
from gpupool import services
from gpupool.models import Instance, InstanceState, Node
from gpupool.reads.nodes import table_of_nodes
from gpupool.services import NewNodeToken


@console_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest) -> HttpResponse:
    """A node for an agent to connect as; the answer is the only place where its token is."""
    actor = operator_of(request)
    form = NodeForm(posted(request))
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            made = tried(form, lambda: services.create_node(form.cleaned_data["name"], actor=actor))
            if made is not None:
                return _told(request, made)
    frame = {"title": _("Nodes"), "back": reverse("console-nodes")}
    return sheet(request, "console/_node_new.html", {**frame, "form": form}, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def rotate(request: HttpRequest, node_id: UUID) -> HttpResponse:
    """Asks first; then the answer is the only place where the new token is."""
    actor, node = operator_of(request), _with_token(node_id)
    form = forms.Form(posted(request))  # asks for nothing; it says what the service refuses
    status = 200
    if request.method == "POST":
        seen = request.POST.get("seen", "")
        made = tried(form, lambda: services.rotate_node_token(node.pk, seen=seen, actor=actor))
        if made is not None:
            return _told(request, made, rotated=True)
        status, node = 422, _with_token(node_id)  # what is so now, to be asked about anew
    return sheet(request, "console/_node_token.html", {**_frame(node), "form": form}, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def revoke(request: HttpRequest, node_id: UUID) -> HttpResponse:
    """Asks first; then the agent is refused."""
    actor, node = operator_of(request), _with_token(node_id)
    form = forms.Form(posted(request))
    status = 200
    if request.method == "POST":
        seen = request.POST.get("seen", "")
        if tried(form, lambda: services.revoke_node_token(node.pk, seen=seen, actor=actor)) is not None:
            messages.success(request, _("The token of node %(node)s is revoked.") % {"node": node.name})
            return leave(request, "console-node", node.pk)
        status, node = 422, _with_token(node_id)
    return sheet(request, "console/_node_revoke.html", {**_frame(node), "form": form}, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def lose(request: HttpRequest, node_id: UUID) -> HttpResponse:
    """Says what would be free, and what answers there all the same; then it is."""
    actor, node = operator_of(request), find_node(node_id)
    form = forms.Form(posted(request))  # asks for nothing; it says what the service refuses
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid() and tried(form, lambda: services.declare_node_lost(node.pk, actor=actor)) is not None:
            messages.success(request, _("Node %(node)s is declared lost; what it held is free.") % {"node": node.name})
            return leave(request, "console-node", node.pk)
    context = {
        **frame_of(node),
        "form": form,
        "held": table_of_nodes().get(pk=node.pk),
        "answering": Instance.objects.filter(node=node, state=InstanceState.READY).count(),
    }
    return sheet(request, "console/_node_lost.html", context, status=status)


def _with_token(node_id: UUID) -> Node:
    """One whose agent a person starts; `simulate-fleet` renews the tokens of its own. Raises Http404."""
    node = find_node(node_id)
    if node.simulated:
        raise Http404
    return node


def _frame(node: Node) -> dict[str, object]:
    """What a dialog is shown with that takes the node's agent away."""
    return {**frame_of(node), "unheard_for": duration_text(settings.GATEHOUSE.node_unreachable_seconds)}


def _told(request: HttpRequest, made: NewNodeToken, *, rotated: bool = False) -> HttpResponse:
    """The token, which is in this answer and in no later one, and how an agent is started with it."""
    command = [
        f"GATEHOUSE_NODE_TOKEN={shlex.quote(made.token)}",
        f"GATEHOUSE_WEB_URL={shlex.quote(settings.GATEHOUSE.public_web_url)}",
        f"  manage.py agent --node {shlex.quote(made.node.name)}",
    ]
    context = {
        **frame_of(made.node),
        "token": made.token,
        "command": " \\\n".join(command),
        "rotated": rotated,
        "known_address": settings.GATEHOUSE.web_url is not None,
    }
    return sheet(request, "console/_node_told.html", context)
