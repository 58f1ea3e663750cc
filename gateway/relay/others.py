"""What the relay answers besides inference: models, stored responses, usage, and what probes and scrapers ask for."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol
from uuid import UUID

import msgspec
import structlog

from core.clock import Clock
from core.errors import BodyTimeout, GatehouseError, MethodNotAllowed, NotFound, error_headers, render_openai
from core.ids import uuid7
from core.telemetry.scrapers import check_scraper
from gateway.relay.dialects.base import id_headers, render_error
from gateway.relay.guards import ClientGone, Receive, Scope, Send, read_body
from gateway.relay.memory import Claim, MemoryBudget
from gateway.relay.oip import about_server
from gateway.relay.own_usage import ALLOWED, USAGE, OwnUsage
from gateway.relay.plan import SlimRequest
from gateway.relay.routes import OIP, OIP_LIVE, OIP_MODELS, OIP_READY, RESPONSES, api_near, posted_api
from gateway.relay.stored import StoredResponses, stored_methods
from gateway.relay.tuning.answers import Tuning
from gateway.relay.tuning.names import find_tuning, tuning_methods

_JSON: Final = (b"content-type", b"application/json")

log = structlog.get_logger(__name__)


class Catalogue(Protocol):
    """What knows the models."""

    async def models(self, request: SlimRequest) -> bytes:
        """The body of /v1/models or /v1/models/{id}, by the request's path. Raises GatehouseError."""


class Scrape(Protocol):
    """What /metrics shows."""

    def __call__(self) -> tuple[bytes, bytes]:
        """Content type and body."""


class Others:
    """Answers requests that are no inference. `unready` says why none should be sent here, None when they may."""

    def __init__(
        self,
        catalogue: Catalogue,
        clock: Clock,
        *,
        unready: Callable[[], str | None],
        scrape: Scrape,
        metrics_token: str | None,
        memory: Callable[[], MemoryBudget],
        stored: StoredResponses | None,
        usage: OwnUsage | None = None,
        tuning: Tuning | None = None,
        body_cap_bytes: int = 0,
        body_deadline_seconds: float = 60.0,
    ) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._unready = unready
        self._scrape = scrape
        self._metrics_token = metrics_token
        self._memory = memory
        self._stored = stored
        self._usage = usage
        self._tuning = tuning
        self._body_cap_bytes = body_cap_bytes
        self._body_deadline_seconds = body_deadline_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        claim = Claim(self._memory())
        try:
            await self._tell(scope, receive, send, claim)
        except ClientGone:
            pass
        finally:
            claim.release()

    async def _tell(self, scope: Scope, receive: Receive, send: Send, claim: Claim) -> None:
        request_id = uuid7()
        status, headers, body = await self._answer(scope, receive, request_id, claim)
        headers = [*headers, *id_headers(api_near(scope["path"]), request_id)]
        if status != 204:
            headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        large = claim.held_bytes > 0
        await send({"type": "http.response.body", "body": body, "more_body": large})
        if large:
            await send({"type": "http.response.body", "body": b""})  # waits for the client to take what was sent

    async def _answer(
        self, scope: Scope, receive: Receive, request_id: UUID, claim: Claim
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        path, method = scope["path"], scope["method"]
        try:
            allowed = _allowed_methods(path)
            if not allowed:
                raise NotFound
            if method == "OPTIONS":
                return 204, [(b"allow", allowed)], b""
            if method.encode() not in allowed.split(b", "):
                raise MethodNotAllowed(headers=((b"allow", allowed),))
            if path == "/healthz":
                return 200, [_JSON], b'{"status":"ok"}'
            if path == "/readyz":
                reason = self._unready()
                body = msgspec.json.encode({"status": reason or "ok"})
                return (503 if reason else 200), [_JSON], body
            if path == "/metrics":
                client = scope.get("client")
                check_scraper(scope["headers"], client_host=client[0] if client else None, token=self._metrics_token)
                content_type, body = self._scrape()
                return 200, [(b"content-type", content_type)], body
            api = api_near(path)
            if path in (OIP, OIP_LIVE, OIP_READY):
                status, body = about_server(path, self._unready())
                return status, [_JSON], body
            now = self._clock.monotonic()
            request = SlimRequest(request_id, api, path, scope["headers"], b"", now, claim=claim)
            if path.startswith(RESPONSES) and self._stored is not None:
                return 200, [_JSON], await self._stored.answer(method, request, scope.get("query_string", b""))
            if path == USAGE and self._usage is not None:
                return 200, [_JSON], await self._usage.answer(method, request, scope.get("query_string", b""))
            if self._tuning is not None and find_tuning(path) is not None:
                body = await self._read(scope, receive, claim) if method == "POST" else b""
                request = SlimRequest(request_id, api, path, scope["headers"], body, now, claim=claim)
                told = await self._tuning.answer(method, request, scope.get("query_string", b""))
                return 200, [(b"content-type", told.content_type.encode())], told.body
            return 200, [_JSON], await self._catalogue.models(request)
        except GatehouseError as error:
            return error.status, error_headers(error), render_error(api_near(path), error, request_id)
        except ClientGone:
            raise
        except Exception:
            log.exception("request_failed", request_id=str(request_id))  # as for inference: answered in shape
            return 500, error_headers(GatehouseError()), render_openai(GatehouseError())

    async def _read(self, scope: Scope, receive: Receive, claim: Claim) -> bytes:
        """The request's body. Raises GatehouseError and ClientGone."""
        try:
            async with asyncio.timeout(self._body_deadline_seconds):
                return await read_body(receive, scope["headers"], cap_bytes=self._body_cap_bytes, claim=claim)
        except TimeoutError:
            raise BodyTimeout(headers=((b"connection", b"close"),)) from None


def _allowed_methods(path: str) -> bytes:
    if posted_api(path) is not None:
        return b"POST, OPTIONS"
    if path in (OIP, OIP_LIVE, OIP_READY) or (path.startswith(OIP_MODELS) and path[len(OIP_MODELS) :]):
        return b"GET, HEAD, OPTIONS"
    if path in ("/healthz", "/readyz", "/metrics", "/v1/models") or (path.startswith("/v1/models/") and path[11:]):
        return b"GET, HEAD, OPTIONS"
    if path == USAGE:
        return ALLOWED
    return stored_methods(path) or tuning_methods(path)
