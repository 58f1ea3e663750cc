"""Puts the web process's ASGI application together: lifespan, HTTP, websockets."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from channels.sessions import SessionMiddlewareStack
from django.urls import re_path

from config.environment import environment
from config.wiring import build_realtime_limits, build_web_runtime
from core.env import SettingsError
from core.errors import BodyTimeout, error_headers
from core.ids import uuid7
from dashboard.live.hub import close_shared_hub
from dashboard.routing import websocket_urlpatterns as page_streams
from gateway.api.http import BODY_CUT, CLIENT_LEFT
from gateway.api.realtime import build_realtime
from gateway.api.runtime import install_runtime
from gateway.relay.dialects.base import id_headers, render_error
from gateway.relay.routes import api_near
from gpupool.leases.default import check_store_settings, close_shared_store
from gpupool.stream.routing import websocket_urlpatterns as agent_streams

# Django, Channels and uvicorn each describe ASGI's messages by types of their own.
Application = Callable[[Any, Any, Any], Awaitable[None]]


class Lifespan:
    """Starts and stops what views forward requests with, on the server's own loop."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        runtime = build_web_runtime(environment())
        await receive()
        try:
            check_store_settings()
            await runtime.start()
        except SettingsError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        install_runtime(runtime)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        install_runtime(None)
        async with AsyncExitStack() as stack:  # each of them, whatever becomes of those before it
            stack.push_async_callback(close_shared_store)
            stack.push_async_callback(close_shared_hub)
            stack.push_async_callback(runtime.stop)
        await send({"type": "lifespan.shutdown.complete"})


def cap_bodies(application: Application, cap_bytes: int) -> Application:
    """`application` with bodies cut at the cap: Django writes a body to a file before any view can object."""

    async def capped(scope: Any, receive: Any, send: Any) -> None:
        left = cap_bytes
        refused = _announced_bytes(scope) > cap_bytes  # without waiting for any of it

        async def count() -> Any:
            nonlocal left
            while True:
                if not refused or scope.get(BODY_CUT):
                    message = await receive()
                    if message["type"] != "http.request":
                        if message["type"] == "http.disconnect":
                            scope[CLIENT_LEFT] = True
                        return message
                    left -= len(message.get("body", b""))
                    if left >= 0 and not refused:
                        return message
                if not scope.get(BODY_CUT):  # what comes after is read and dropped
                    scope[BODY_CUT] = True
                    return {"type": "http.request", "body": b"", "more_body": False}

        await application(scope, count, send)

    return capped


def _announced_bytes(scope: Any) -> int:
    """The length that a request says its body has, 0 where it says none."""
    if scope["type"] != "http":
        return 0
    said = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(said) if said.isdigit() else 0


async def refuse_socket(scope: Any, receive: Any, send: Any) -> None:
    """For websocket addresses that do not exist; a router would fail on them, with a traceback in the log."""
    await receive()
    await send({"type": "websocket.close"})


def is_origin_readable(scope: Any) -> bool:
    """Whether the check of the origin can read it; it would fail on others, with a traceback in the log for each."""
    for name, value in scope["headers"]:
        if name == b"origin":
            try:
                _ = urlsplit(value.decode("latin-1")).port
            except ValueError:
                return False
    return True


def bound_bodies(application: Application, seconds: float) -> Application:
    """`application` with a bound on the wait for a whole body; one that is late is told 408, as by the relay."""

    async def bounded(scope: Any, receive: Any, send: Any) -> None:
        due = asyncio.get_running_loop().time() + seconds
        waiting, answered = True, False

        async def receive_in_time() -> Any:
            nonlocal waiting
            if not waiting:
                return await receive()
            try:
                async with asyncio.timeout_at(due):
                    message = await receive()
            except TimeoutError:
                waiting = False
                if not answered:
                    await _tell_late(scope, send)
                return {"type": "http.disconnect"}  # Django gives the request up
            waiting = message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def note_answer(message: Any) -> None:
            nonlocal answered
            answered = True
            await send(message)

        await application(scope, receive_in_time, note_answer)

    return bounded


async def _tell_late(scope: Any, send: Any) -> None:
    """408 for a body that did not come in time; the connection is of no more use."""
    error, request_id = BodyTimeout(headers=((b"connection", b"close"),)), uuid7()
    api = api_near(scope["path"])
    body = render_error(api, error, request_id)
    headers = [*error_headers(error), (b"content-length", b"%d" % len(body)), *id_headers(api, request_id)]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def bound_sends(application: Application, seconds: float) -> Application:
    """`application` with a bound on each wait for a client that does not read: it may hold no engine for ever."""

    async def bounded(scope: Any, receive: Any, send: Any) -> None:
        async def send_in_time(message: Any) -> None:
            if message["type"] == "http.response.start":  # our server takes names in lower case, Django's are not
                message["headers"] = [(name.lower(), value) for name, value in message["headers"]]
            try:
                async with asyncio.timeout(seconds):
                    await send(message)
            except TimeoutError:
                # As Django sees a client that left. Any other error would keep the response alive in its traceback.
                raise asyncio.CancelledError from None

        await application(scope, receive, send_in_time)

    return bounded


def _router(patterns: list[Any]) -> URLRouter:
    nowhere: Any = re_path(r"", refuse_socket)  # type: ignore[arg-type]  # Django types its own views only
    return URLRouter([*patterns, nowhere])  # takes Django's patterns, though its types want a kind of its own


def build_application(django: Application) -> Application:
    """One application for HTTP, websockets and lifespan.

    Node agents authenticate by token and send no Origin; browsers' sockets must come from our own pages.
    """
    agents = _router(agent_streams)
    # Conversations are for whoever has a key: no cookie counts there, so no Origin does.
    realtime = build_realtime(build_realtime_limits(environment()))
    browser = AllowedHostsOriginValidator(SessionMiddlewareStack(_router(page_streams)))

    async def websocket(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/agent/"):
            await agents(scope, receive, send)
        elif scope["path"].startswith("/v1/"):
            await realtime(scope, receive, send)
        else:
            await (browser if is_origin_readable(scope) else refuse_socket)(scope, receive, send)

    env = environment()
    http = bound_bodies(cap_bodies(django, env.body_cap_bytes), env.body_deadline_seconds)
    http = bound_sends(http, env.send_deadline_seconds)
    router: Application = ProtocolTypeRouter({"http": http, "websocket": websocket, "lifespan": Lifespan()})
    return router
