"""The control API of notices and webhooks: of a tenant, and of the platform where the address names none."""

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.etags import check_match, tagged
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from tenants.api.access import find_tenant, is_allowed_in, person_of, platform_access, tenant_access
from tenants.api.base import ControlView
from tenants.models import Delivery, Notice, Tenant, Webhook
from tenants.models.notices import URL_LENGTH
from tenants.policies.notice_texts import NoticeText
from tenants.policies.notices import NoticeKind
from tenants.policies.roles import Action, Object, may
from tenants.reads import notices
from tenants.services import webhooks
from tenants.services.notice_saying import notice_said

_KINDS = [kind.value for kind in NoticeKind]
_CHANGING = frozenset({"failing_since"})  # on its own


def _tenant(request: Request, slug: str | None, action: Action, on: Object) -> Tenant | None:
    """The tenant of the address, None for the platform. Raises NotFound, PermissionDenied."""
    if slug is None:
        platform_access(request, action, on)
        return None
    return tenant_access(request, slug, action, on).tenant


def _may_change_webhooks(request: Request, slug: str | None) -> bool:
    if slug is not None:
        return is_allowed_in(request, find_tenant(request, slug), Action.CHANGE, Object.WEBHOOK)
    role = person_of(request).active_platform_role
    return may(Action.CHANGE, Object.WEBHOOK, platform_role=role, tenant_role=None)


class NoticeSerializer(serializers.ModelSerializer[Notice]):
    """One notice, its words in the reader's language."""

    kind = serializers.ChoiceField(choices=_KINDS, read_only=True)
    payload = serializers.DictField(read_only=True)
    subject = serializers.SerializerMethodField()
    body = serializers.SerializerMethodField()
    emailed = serializers.SerializerMethodField(
        help_text="not_emailed (there is no mail server, or nobody to write to), pending, failed or emailed."
    )

    class Meta:
        model = Notice
        fields = ("id", "kind", "subject", "body", "payload", "emailed", "created_at")

    def get_subject(self, notice: Notice) -> str:
        return self._text(notice).subject

    def get_body(self, notice: Notice) -> str:
        return self._text(notice).body

    def get_emailed(self, notice: Any) -> str:
        if not notice.mails:
            return "not_emailed"
        if notice.mails_failed:
            return "failed"
        return "pending" if notice.mails_pending else "emailed"

    def _text(self, notice: Notice) -> NoticeText:
        if notice.kind not in _KINDS:
            return NoticeText(notice.kind, "")  # of a later version than this process
        language = person_of(self.context["request"]).language
        return notice_said(NoticeKind(notice.kind), notice.payload, language)


class WebhookSerializer(serializers.ModelSerializer[Webhook]):
    """A webhook without its secret, which nobody can see again."""

    events = serializers.ListField(child=serializers.CharField(), read_only=True, help_text="Empty: all.")

    class Meta:
        model = Webhook
        fields = (
            "id", "url", "events", "enabled", "disabled_reason", "failing_since", "secret_version", "rotated_at",
            "created_at",
        )  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {"url": {"help_text": "Its host alone for those who may not change it: the rest may be secret."}}

    def to_representation(self, webhook: Webhook) -> dict[str, Any]:
        told: dict[str, Any] = super().to_representation(webhook)
        if not self.context.get("may_change", True):
            told["url"] = webhooks.origin_of(webhook.url)
        return told


class WebhookWithSecretSerializer(WebhookSerializer):
    """The only place where the secret is."""

    secret = serializers.CharField(read_only=True, help_text="whsec_ and the key in base64. It is told once.")

    class Meta(WebhookSerializer.Meta):
        fields = (*WebhookSerializer.Meta.fields, "secret")  # type: ignore[assignment]  # one more than the base's


class NewWebhookSerializer(serializers.Serializer[Any]):
    url = serializers.CharField(max_length=URL_LENGTH)
    events = serializers.ListField(
        child=serializers.ChoiceField(choices=_KINDS), required=False, default=list, max_length=len(_KINDS)
    )


class WebhookChangeSerializer(serializers.Serializer[Any]):
    url = serializers.CharField(max_length=URL_LENGTH, required=False)
    events = serializers.ListField(
        child=serializers.ChoiceField(choices=_KINDS), required=False, max_length=len(_KINDS)
    )
    enabled = serializers.BooleanField(required=False)


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    """One notice on its way to the webhook; its id is the message's."""

    kind = serializers.ChoiceField(choices=_KINDS, source="notice.kind", read_only=True)
    notice_id = serializers.UUIDField(read_only=True)

    class Meta:
        model = Delivery
        fields = (
            "id", "notice_id", "kind", "state", "attempts", "next_attempt_at", "last_status", "last_error",
            "created_at", "ended_at",
        )  # fmt: skip


class NoticeListView(ControlView, ListAPIView[Notice]):
    """What was told."""

    serializer_class = NoticeSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Notice]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no tenant
            return Notice.objects.none()
        return notices.list_notices(_tenant(self.request, self.kwargs.get("slug"), Action.VIEW, Object.NOTICE))


class WebhookListView(IdempotentCreate, ControlView, ListAPIView[Webhook]):
    """Addresses that notices are posted to."""

    serializer_class = WebhookSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Webhook]:
        if getattr(self, "swagger_fake_view", False):
            return Webhook.objects.none()
        return notices.list_webhooks(_tenant(self.request, self.kwargs.get("slug"), Action.VIEW, Object.WEBHOOK))

    def get_serializer_context(self) -> dict[str, Any]:
        context = {**super().get_serializer_context()}
        if getattr(self, "swagger_fake_view", False):
            return context
        return context | {"may_change": _may_change_webhooks(self.request, self.kwargs.get("slug"))}

    @extend_schema(request=NewWebhookSerializer, responses={201: WebhookWithSecretSerializer})
    def post(self, request: Request, slug: str | None = None) -> Response:
        """Make one; the answer is the only place where its secret is."""
        tenant = _tenant(request, slug, Action.CREATE, Object.WEBHOOK)
        return _with_secret(webhooks.create_webhook(tenant, actor=self.actor, **self.parsed(NewWebhookSerializer)), 201)


class _WebhookView(ControlView):
    def webhook(self, request: Request, slug: str | None, webhook_id: UUID, action: Action) -> Webhook:
        """Raises NotFound, PermissionDenied."""
        try:
            return notices.get_webhook(_tenant(request, slug, action, Object.WEBHOOK), webhook_id)
        except Webhook.DoesNotExist as error:
            raise NotFound from error


class WebhookView(_WebhookView):
    """One webhook."""

    conditional = ("PATCH",)

    @extend_schema(responses=WebhookSerializer)
    def get(self, request: Request, webhook_id: UUID, slug: str | None = None) -> Response:
        webhook = self.webhook(request, slug, webhook_id, Action.VIEW)
        context = {"may_change": _may_change_webhooks(request, slug)}
        return tagged(WebhookSerializer(webhook, context=context).data, without=_CHANGING)

    @extend_schema(request=WebhookChangeSerializer, responses=WebhookSerializer)
    def patch(self, request: Request, webhook_id: UUID, slug: str | None = None) -> Response:
        """Change its address or events, disable or enable it."""
        self.webhook(request, slug, webhook_id, Action.CHANGE)
        values = self.parsed(WebhookChangeSerializer)
        with transaction.atomic():
            locked = webhooks.lock_webhook(webhook_id)
            check_match(request, WebhookSerializer(locked).data, without=_CHANGING)
            webhook = webhooks.change_webhook(webhook_id, actor=self.actor, **values)
        return tagged(WebhookSerializer(webhook).data, without=_CHANGING)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, webhook_id: UUID, slug: str | None = None) -> Response:
        """Delete it, with the log of its deliveries."""
        self.webhook(request, slug, webhook_id, Action.DELETE)
        webhooks.delete_webhook(webhook_id, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


class WebhookRotateView(IdempotentCreate, _WebhookView):
    """A new secret for a webhook."""

    @extend_schema(request=None, responses={200: WebhookWithSecretSerializer})
    def post(self, request: Request, webhook_id: UUID, slug: str | None = None) -> Response:
        """The secret before signs beside the new one for a day."""
        self.webhook(request, slug, webhook_id, Action.CHANGE)
        return _with_secret(webhooks.rotate_webhook_secret(webhook_id, actor=self.actor), 200)


class WebhookTestView(IdempotentCreate, _WebhookView):
    """A delivery that says nothing."""

    @extend_schema(request=None, responses={202: DeliverySerializer})
    def post(self, request: Request, webhook_id: UUID, slug: str | None = None) -> Response:
        """Sent within seconds; what came of it is in the webhook's deliveries."""
        self.webhook(request, slug, webhook_id, Action.CHANGE)
        delivery = webhooks.send_test_notice(webhook_id, actor=self.actor)
        return Response(DeliverySerializer(delivery).data, status=status.HTTP_202_ACCEPTED)


class DeliveryListView(_WebhookView, ListAPIView[Delivery]):
    """What was sent to a webhook, and what came of it."""

    serializer_class = DeliverySerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Delivery]:
        if getattr(self, "swagger_fake_view", False):
            return Delivery.objects.none()
        slug, webhook_id = self.kwargs.get("slug"), self.kwargs["webhook_id"]
        return notices.list_deliveries(self.webhook(self.request, slug, webhook_id, Action.VIEW))


def _with_secret(new: webhooks.NewSecret, code: int) -> Response:
    body = {**WebhookSerializer(new.webhook).data, "secret": new.secret}
    return Response(body, status=code, headers={"Cache-Control": "no-store"})
