"""`Idempotency-Key`: a POST that is sent again, because its answer was lost, is done once.

The claim on the key, the write and the stored answer are one transaction: a process that dies in between leaves
nothing behind, and whoever asks again is served as if for the first time. A key that is in use is an advisory lock,
so that a second request is told 409 at once instead of waiting.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Final

from django.db import connection, transaction
from django.utils import timezone
from rest_framework import status
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder
from rest_framework.views import APIView

from core.models import IdempotencyRecord
from core.refusals import Conflict

RETENTION: Final = timedelta(hours=24)
_LONGEST_KEY: Final = 255
_KEY: Final = re.compile("[!-~]+")
_KEPT_HEADERS: Final = ("ETag", "Location", "Cache-Control")


class KeyReused(APIException):
    """The same key with another request."""

    status_code = status.HTTP_422_UNPROCESSABLE_ENTITY
    default_detail = "This Idempotency-Key was used for another request; take a new one for a new request."
    default_code = "idempotency_key_reused"


class IdempotentCreate(APIView):
    """Mixin, before the view's other bases: POST honours `Idempotency-Key` for 24 hours.

    Only answers below 300 are kept; what was refused may be tried again with the same key. `post` runs in a
    transaction, so that a service which insists on the outermost one (`durable`) cannot be called from it.
    """

    never_stored: ClassVar[frozenset[str]] = frozenset({"secret", "token"})
    """Members, at any depth, that an answer to a repeated request lacks."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        key = request.headers.get("Idempotency-Key")
        if request.method == "POST" and key is not None:
            if len(key) > _LONGEST_KEY or not _KEY.fullmatch(key):
                raise ValidationError({"Idempotency-Key": [f"1 to {_LONGEST_KEY} characters of ASCII, no blanks."]})
            handler: Callable[..., Response] = getattr(self, "post")  # noqa: B009  # the view's; the mixin has none
            setattr(self, "post", functools.partial(self._once, handler, key))  # noqa: B010

    def _once(
        self, handler: Callable[..., Response], key: str, request: Request, *args: Any, **kwargs: Any
    ) -> Response:
        person = request.user.pk
        assert person is not None  # the permission class let no stranger in
        key_digest = hashlib.sha256(key.encode()).digest()
        target = f"{request.method} {request.get_full_path()}"
        asked = hashlib.sha256(target.encode() + b"\0" + request.body).digest()
        with transaction.atomic():
            _claim(hashlib.sha256(person.bytes + key_digest).digest())
            known = IdempotencyRecord.objects.filter(person_id=person, key_digest=key_digest).first()
            if known is not None and known.created_at > timezone.now() - RETENTION:
                if bytes(known.request_digest) != asked:
                    raise KeyReused
                headers = {**known.headers, "Idempotent-Replayed": "true"}
                return Response(known.body, status=known.status, headers=headers)
            response = handler(request, *args, **kwargs)
            if response.status_code < 300:
                IdempotencyRecord.objects.update_or_create(
                    person_id=person,
                    key_digest=key_digest,
                    defaults={
                        "target": target[:500],
                        "request_digest": asked,
                        "status": response.status_code,
                        "body": _plain(response.data, self.never_stored),
                        "headers": {name: response[name] for name in _KEPT_HEADERS if response.has_header(name)},
                        "created_at": timezone.now(),
                    },
                )
            return response


def prune_idempotency_records() -> int:
    """Delete those past their time; returns how many. Safe to run twice."""
    deleted, _ = IdempotencyRecord.objects.filter(created_at__lt=timezone.now() - RETENTION).delete()
    return deleted


def _claim(digest: bytes) -> None:
    """Raises Conflict while another request holds the key."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [int.from_bytes(digest[:8], "big", signed=True)])
        if not cursor.fetchone()[0]:
            raise Conflict("A request with this Idempotency-Key is still running.")


def _plain(data: Any, never_stored: frozenset[str]) -> Any:
    """As JSON values, without members that are told once."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: cleaned(part) for name, part in value.items() if name not in never_stored}
        return [cleaned(part) for part in value] if isinstance(value, list) else value

    return cleaned(json.loads(json.dumps(data, cls=JSONEncoder)))
