"""The control API of stored conversations: for a tenant's own owners and admins; no platform role reads them."""

import json
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.etags import tagged
from core.api.filters import Query
from core.api.paging import NewestFirst
from gateway.models import StoredConversation
from gateway.selectors import get_conversation, list_conversations
from gateway.services.conversation_store import delete_conversation
from tenants.api.access import tenant_access
from tenants.api.base import ControlView
from tenants.policies.roles import Action, Object


class ConversationSerializer(serializers.ModelSerializer[StoredConversation]):
    """One request of a key that has conversations stored; its id is the request's."""

    class Meta:
        model = StoredConversation
        fields: tuple[str, ...] = (
            "id", "key_id", "model", "api", "streamed", "outcome", "truncated", "created_at", "expires_at",
        )  # fmt: skip
        read_only_fields = fields


class WholeConversationSerializer(ConversationSerializer):
    """With what was said."""

    messages = serializers.SerializerMethodField(help_text="What was asked, in the client's own words.")
    answer = serializers.SerializerMethodField(help_text="For each choice the message that the model said.")

    class Meta(ConversationSerializer.Meta):
        fields = (*ConversationSerializer.Meta.fields, "messages", "answer")

    @extend_schema_field({"type": "array", "items": {}})
    def get_messages(self, conversation: StoredConversation) -> Any:
        return json.loads(conversation.messages)

    @extend_schema_field({"type": "array", "items": {"type": "object", "additionalProperties": {}}})
    def get_answer(self, conversation: StoredConversation) -> Any:
        return json.loads(conversation.answer)


class ConversationQuery(Query):
    key_id = serializers.UUIDField(required=False)
    model = serializers.CharField(required=False, max_length=200)
    api = serializers.CharField(required=False, max_length=16)
    outcome = serializers.CharField(required=False, max_length=12)


class ConversationListView(ControlView, ListAPIView[StoredConversation]):
    """A tenant's stored conversations."""

    serializer_class = ConversationSerializer
    pagination_class = NewestFirst
    query_class = ConversationQuery

    def get_queryset(self) -> QuerySet[StoredConversation]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no tenant
            return StoredConversation.objects.none()
        tenant, _ = tenant_access(self.request, self.kwargs["slug"], Action.VIEW, Object.CONVERSATION)
        return list_conversations(tenant, now=timezone.now(), **self.query)

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first, without what was said; for the tenant's owners and admins."""
        return super().get(request, *args, **kwargs)


class ConversationView(ControlView):
    """One stored conversation."""

    @extend_schema(responses=WholeConversationSerializer)
    def get(self, request: Request, slug: str, conversation_id: UUID) -> Response:
        """What was said; for the tenant's owners and admins."""
        tenant, _ = tenant_access(request, slug, Action.VIEW, Object.CONVERSATION)
        try:
            found = get_conversation(tenant, conversation_id, now=timezone.now())
        except StoredConversation.DoesNotExist as error:
            raise NotFound from error
        answer = tagged(WholeConversationSerializer(found).data)
        answer["Cache-Control"] = "no-store"
        return answer

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str, conversation_id: UUID) -> Response:
        """Delete it, for ever; for the tenant's owners and admins, and for superusers. Audited."""
        tenant, _ = tenant_access(request, slug, Action.DELETE, Object.CONVERSATION)
        try:
            delete_conversation(tenant.pk, conversation_id, actor=self.actor)
        except StoredConversation.DoesNotExist as error:
            raise NotFound from error
        return Response(status=status.HTTP_204_NO_CONTENT)
