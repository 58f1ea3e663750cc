"""The view that control APIs are made of: it knows who asks.

    class LimitListView(IdempotentCreate, ControlView):
        def post(self, request: Request, slug: str) -> Response:
            tenant, _ = tenant_access(request, slug, Action.CHANGE, Object.LIMIT)
            limit = services.create_limit(tenant, actor=self.actor, **self.parsed(NewLimitSerializer))
            return tagged(LimitSerializer(limit).data, status=201)

No try/except: `InvalidInput` is told as 400 naming the field and `Conflict` as 409 (gateway.api.problems).
"""

from core.api.views import FloorView
from tenants.actor import Actor, user_actor
from tenants.api.permissions import SignedIn
from tenants.models import User


class ControlView(FloorView):
    """For people who are signed in; what they may do there is asked in the view (tenants.api.access)."""

    permission_classes = (SignedIn,)

    @property
    def person(self) -> User:
        assert isinstance(self.request.user, User)  # the permission class let no other in
        return self.request.user

    @property
    def actor(self) -> Actor:
        """The person, with the request's id for the audit log."""
        return user_actor(self.person.pk, request_id=self.request_id)
