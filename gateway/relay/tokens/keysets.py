"""The public keys of issuers: fetched ahead of time on threads of their own, kept while their address is away.

A request waits here at most once in an issuer's life: when its first token comes before its keys were ever fetched.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol
from uuid import UUID

import structlog

from core.clock import Clock
from core.ending import end_tasks
from core.errors import Unavailable
from core.outbound import Answer, OutboundError, OutboundLimits
from gateway.relay.rows import IssuerRow
from tenants.policies.token_keys import BadKeySet, KeySet, read_key_set

logger = structlog.get_logger(__name__)

REFRESH_SECONDS: Final = 600.0
KEPT_SECONDS: Final = 86_400.0
"""How long keys are used after they were last fetched: so long their address may be away."""
FEWEST_SECONDS: Final = 10.0
"""Between two fetches for one issuer, whatever asks for them."""
FIRST_WAIT_SECONDS: Final = 3.0
_FETCH_SECONDS: Final = 5.0
_MOST_BYTES: Final = 256 * 1024
_THREADS: Final = 8  # so many issuers may be silent at once before others wait for theirs
_LOOK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 5.0


class KeysUnavailable(Unavailable):
    """Nobody can say whether the token is good: 503, for the client to try again."""

    code = "token_keys_unavailable"
    default_message = "The keys of the token's issuer cannot be had now."


class Fetcher(Protocol):
    """core.outbound.OutboundClient, as is needed here."""

    def fetch(self, url: str, *, limits: OutboundLimits | None = None) -> Answer:
        """Raises OutboundError."""


class _Held:
    """What is known of one issuer's keys. Times are monotonic seconds."""

    __slots__ = ("fetched", "fetched_at", "fetching", "keys", "pinned", "row", "source", "tried_at", "wanted")

    def __init__(self, row: IssuerRow) -> None:
        self.row = row
        self.pinned = _read_pinned(row)
        self.fetched: KeySet | None = None
        self.source = b""
        self.fetched_at = self.tried_at = float("-inf")
        self.fetching: asyncio.Future[None] | None = None
        self.wanted = False  # asked for, when it had been tried only just before
        self.keys: KeySet | None = self.pinned

    def take(self, answer: bytes, now: float) -> bool:
        """Keys that were fetched; False where they are the ones that are held. Raises BadKeySet."""
        if answer == self.source and self.fetched is not None:
            self.fetched_at = now
            return False
        self.fetched, self.source, self.fetched_at = read_key_set(answer), answer, now
        self.keys = _joined(self.pinned, self.fetched)
        return True

    def forget_fetched(self) -> None:
        self.fetched, self.source, self.keys = None, b"", self.pinned


class KeySets:
    """Keys by issuer, of the issuers that `issuers` gives. Only touched on the event loop; `run` keeps them fresh."""

    def __init__(self, fetcher: Fetcher, issuers: Callable[[], Iterable[IssuerRow]], *, clock: Clock) -> None:
        self._fetcher = fetcher
        self._issuers = issuers
        self._clock = clock
        self._held: dict[UUID, _Held] = {}
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="token-keys")
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, issuer: IssuerRow) -> KeySet | None:
        """The keys to check a token of this issuer with; another object once they have changed. None: not known."""
        held = self._held.get(issuer.id)
        if held is None or held.row is not issuer:
            held = self._adopt(issuer)
        return held.keys

    async def first(self, issuer: IssuerRow) -> KeySet:
        """The keys, waited for where they were never fetched. Raises KeysUnavailable."""
        keys = self.get(issuer)
        if keys is None:
            fetching = self._fetch_soon(self._held[issuer.id])
            if fetching is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(fetching), FIRST_WAIT_SECONDS)
            keys = self.get(issuer)
        if keys is None:
            raise KeysUnavailable(retry_after_seconds=_RETRY_SECONDS)
        return keys

    def refresh_soon(self, issuer: IssuerRow) -> None:
        """There may be newer keys: fetch them, but not before FEWEST_SECONDS have passed since that was last tried."""
        self.get(issuer)
        held = self._held[issuer.id]
        if held.row.jwks_url and self._fetch_soon(held) is None:
            held.wanted = True

    async def run(self) -> None:
        """Fetch what is due, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        """Begin to fetch what is new or old; drop what is too old, or of issuers that are gone."""
        now = self._clock.monotonic()
        rows = {row.id: row for row in self._issuers()}
        for gone in self._held.keys() - rows.keys():
            del self._held[gone]
        for row in rows.values():
            self.get(row)
            held = self._held[row.id]
            if held.fetched is not None and now - held.fetched_at > KEPT_SECONDS:
                logger.error("token_keys_too_old", issuer_id=str(row.id))
                held.forget_fetched()
            if held.wanted or now - held.fetched_at >= REFRESH_SECONDS:
                self._fetch_soon(held)

    async def aclose(self) -> None:
        await end_tasks(*self._tasks)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _adopt(self, row: IssuerRow) -> _Held:
        """Of an issuer that was changed, the keys stay as long as their address does."""
        before, held = self._held.get(row.id), _Held(row)
        if before is not None and _source(before.row) == _source(row):
            held.fetched, held.source = before.fetched, before.source
            held.fetched_at, held.tried_at, held.fetching = before.fetched_at, before.tried_at, before.fetching
            held.wanted, held.keys = before.wanted, _joined(held.pinned, held.fetched)
        self._held[row.id] = held
        return held

    def _fetch_soon(self, held: _Held) -> "asyncio.Future[None] | None":
        """The fetch that is under way, begun where one may be; None where it was tried only just now."""
        if not held.row.jwks_url:
            return None
        if held.fetching is not None and not held.fetching.done():
            return held.fetching
        now = self._clock.monotonic()
        if now - held.tried_at < FEWEST_SECONDS:
            return None
        held.tried_at, held.wanted = now, False
        task = asyncio.get_running_loop().create_task(self._fetch(held.row))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        held.fetching = task
        return task

    async def _fetch(self, row: IssuerRow) -> None:
        limits = OutboundLimits(
            total_seconds=_FETCH_SECONDS,
            answer_bytes=_MOST_BYTES,
            allow_private=row.allow_private,
            allow_http=row.allow_private,
        )
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._threads, lambda: self._fetcher.fetch(row.jwks_url, limits=limits))
            held = self._held.get(row.id)
            if held is None or _source(held.row) != _source(row):
                return
            if answer.status != 200:
                logger.warning("token_keys_not_fetched", issuer_id=str(row.id), status=answer.status)
            elif held.take(answer.body, self._clock.monotonic()):
                assert held.fetched is not None
                logger.info(
                    "token_keys_fetched",
                    issuer_id=str(row.id),
                    keys=len(held.fetched.keys),
                    passed_over=held.fetched.passed_over,
                )
        except OutboundError as error:
            logger.warning("token_keys_not_fetched", issuer_id=str(row.id), reason=error.code, detail=str(error))
        except BadKeySet as error:
            logger.warning("token_keys_not_fetched", issuer_id=str(row.id), reason="bad_key_set", detail=str(error))


def _source(row: IssuerRow) -> tuple[str, bool]:
    """Where keys are fetched from, and whether that may be inside this network."""
    return row.jwks_url, row.allow_private


def _read_pinned(row: IssuerRow) -> KeySet | None:
    try:
        return read_key_set(row.pinned_jwks) if row.pinned_jwks else None
    except BadKeySet as error:  # written past the service
        logger.error("pinned_keys_not_read", issuer_id=str(row.id), detail=str(error))
        return None


def _joined(pinned: KeySet | None, fetched: KeySet | None) -> KeySet | None:
    """Both; of two keys of one name the pinned one counts."""
    if pinned is None or fetched is None:
        return pinned or fetched
    names = {one.kid for one in pinned.keys if one.kid}
    held = [one.key for one in pinned.keys]
    return KeySet((*pinned.keys, *(one for one in fetched.keys if one.kid not in names and one.key not in held)))
