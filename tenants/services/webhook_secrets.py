"""Signing what webhooks are sent, in the form of Standard Webhooks.

Secrets are stored nowhere: each is derived from the installation's secret key, the webhook's id and a version, so that
a copy of the database signs nothing. Who changes the installation's secret key changes them all.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from django.conf import settings

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # what a secret begins with


def _key(webhook_id: UUID, version: int) -> bytes:
    root = hmac.digest(settings.SECRET_KEY.encode(), b"gatehouse webhook secrets", "sha256")
    return hmac.digest(root, webhook_id.bytes + version.to_bytes(4), hashlib.sha256)


def webhook_secret(webhook_id: UUID, version: int) -> str:
    """The secret as its receiver keeps it: `whsec_` and 32 bytes in base64."""
    return SECRET_PREFIX + base64.b64encode(_key(webhook_id, version)).decode()


def signed_headers(
    webhook_id: UUID, versions: Sequence[int], *, message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """`webhook-id`, `webhook-timestamp` (seconds since the epoch) and `webhook-signature` of a message.

    One `v1,` signature for each version of the secret, separated by blanks, newest first.
    """
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    signatures = [
        "v1," + base64.b64encode(hmac.digest(_key(webhook_id, version), signed, "sha256")).decode()
        for version in versions
    ]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
