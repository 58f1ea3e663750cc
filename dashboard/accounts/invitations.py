"""Where an invitation's link leads."""

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from dashboard.accounts.forms import AcceptForm
from dashboard.accounts.log_in import log_in
from dashboard.refusals import add_refusal
from tenants import services
from tenants.actor import user_actor
from tenants.models import Invitation, User
from tenants.reads.people import get_open_invitation


@never_cache
@require_http_methods(["GET", "POST"])
def accept(request: HttpRequest, secret: str) -> HttpResponse:
    """Says what one is invited to. Who is logged in accepts; who has an account logs in first; others make one."""
    try:
        invitation = get_open_invitation(secret)
        return _answer(request, secret, invitation)
    except Invitation.DoesNotExist:  # also one that was accepted a moment ago
        return render(request, "accounts/refused.html", {"reason": "invitation"}, status=404)


def _answer(request: HttpRequest, secret: str, invitation: Invitation) -> HttpResponse:
    user = request.user
    page = {"invitation": invitation, "login": f"{reverse('login')}?next={request.path}"}
    portal = reverse("portal-home", args=[invitation.tenant.slug])
    if isinstance(user, User):
        if user.email != invitation.email:
            return render(request, "accounts/invitation.html", {**page, "step": "other"}, status=403)
        if request.method == "POST":
            try:
                services.accept_invitation(secret, user, actor=user_actor(user.pk))
            except PermissionDenied:
                return render(request, "accounts/invitation.html", {**page, "step": "other"}, status=403)
            messages.success(request, _("You are a member of %(tenant)s now.") % {"tenant": invitation.tenant.name})
            return redirect(portal)
        return render(request, "accounts/invitation.html", {**page, "step": "accept"})
    if User.objects.filter(email=invitation.email).exists():
        return render(request, "accounts/invitation.html", {**page, "step": "log-in"})
    form = AcceptForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = services.accept_invitation_as_new(
                secret, display_name=form.cleaned_data["display_name"], password=form.cleaned_data["password"]
            )
        except services.InvalidInput as error:
            add_refusal(form, error)
        else:
            return log_in(request, made, method="invitation", then=portal)
    status = 422 if request.method == "POST" else 200
    return render(request, "accounts/invitation.html", {**page, "step": "new", "form": form}, status=status)
