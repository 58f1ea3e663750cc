"""What a page asks when its socket is refused: a refused handshake says nothing to scripts."""

from http import HTTPStatus

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from tenants.models import User
from tenants.second_factor import lacks_second_factor


@never_cache
@require_safe
def standing(request: HttpRequest) -> HttpResponse:
    """204 for people who may open one; 403 with the word for why not: see dashboard/strings.py."""
    user: User | AnonymousUser = request.user
    if not isinstance(user, User):
        return HttpResponse("signed_out", status=HTTPStatus.FORBIDDEN, content_type="text/plain")
    if lacks_second_factor(user):
        return HttpResponse("second_factor", status=HTTPStatus.FORBIDDEN, content_type="text/plain")
    return HttpResponse(status=HTTPStatus.NO_CONTENT)
