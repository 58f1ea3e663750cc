"""Conversations of keys that ask for them to be kept."""

from django.db import models

from core.models import TimeOrderedModel


class StoredConversation(TimeOrderedModel):
    """One request and its answer; the primary key is the request's id. Off unless a key asks for it.

    Texts in JSON, as texts: nobody searches in them, and what clients and engines say need not fit a jsonb.
    """

    tenant_id = models.UUIDField()
    key_id = models.UUIDField()
    model = models.CharField(max_length=200)  # the name at the door
    api = models.CharField(max_length=16)
    streamed = models.BooleanField()
    outcome = models.CharField(max_length=12)  # as the ledger has it
    messages = models.TextField()  # what was asked: the client's own messages, the system's among them
    answer = models.TextField()  # a list: for each choice the message that the model said
    truncated = models.BooleanField(default=False)  # more was said than is kept
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["tenant_id", "-id"], name="gateway_conversation_tenant"),
            models.Index(fields=["expires_at"], name="gateway_conversation_expiry"),
        ]

    def __str__(self) -> str:
        return f"conversation {self.pk}"
