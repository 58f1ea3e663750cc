"""Websockets of the pages: who may watch is asked at connect and again every few seconds."""

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError, InterfaceError

from dashboard.publisher import Subscription, console_publisher
from tenants.models import User
from tenants.second_factor import lacks_second_factor

CLOSE_DENIED: Final = 4403
"""Close code of a viewer who may not, or no longer, watch; pages then stop trying."""


class ConsoleConsumer(AsyncWebsocketConsumer):
    """`/ws/console`: a frame a second for people with a platform role."""

    recheck_seconds: float = 5.0
    _tasks: tuple[asyncio.Task[None], ...] = ()
    _subscription: Subscription | None = None

    async def connect(self) -> None:
        if not is_same_origin(self.scope):
            await self.close()
            return
        await self.accept()
        if not await self._may_watch():
            await self.close(CLOSE_DENIED)
            return
        self._subscription = console_publisher().subscribe()
        self._tasks = (
            asyncio.create_task(self._pump(self._subscription)),
            asyncio.create_task(self._recheck()),
        )

    async def disconnect(self, code: int) -> None:
        if self._subscription is not None:
            self._subscription.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pump(self, subscription: Subscription) -> None:
        while True:
            await self.send(text_data=await subscription.next())

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(self.recheck_seconds)
            try:
                may_watch = await self._may_watch()
            except (DatabaseError, InterfaceError):
                continue  # what cannot be asked is asked again; frames come from the same database
            if not may_watch:
                self._tasks[0].cancel()  # nothing may be sent behind a close
                await self.close(CLOSE_DENIED)
                return

    async def _may_watch(self) -> bool:
        """Asks the session's store, not what this socket saw at connect: people log out and lose roles."""
        session = self.scope.get("session")
        key = getattr(session, "session_key", None)
        if key is None:
            return False
        store = import_module(settings.SESSION_ENGINE).SessionStore(key)
        user = await get_user({**self.scope, "session": store})
        return isinstance(user, User) and user.may_read_platform and not await self._lacks_second_factor(user)

    @staticmethod
    @database_sync_to_async
    def _lacks_second_factor(user: User) -> bool:
        return lacks_second_factor(user)


def is_same_origin(scope: Mapping[str, Any]) -> bool:
    """Whether the page that opened the socket is ours: another port of this host is not.

    Cookies ignore ports, so the check of a host name alone would let a neighbour's page read frames.
    """
    headers = dict(scope["headers"])
    origin = headers.get(b"origin", b"").decode("latin-1")
    host = headers.get(b"host", b"").decode("latin-1")
    return bool(host) and (urlsplit(origin).netloc == host or origin in settings.CSRF_TRUSTED_ORIGINS)
