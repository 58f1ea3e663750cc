"""OpenAI's `x-ratelimit-*` fields. Pure."""

from collections.abc import Iterable
from typing import Final

from gateway.relay.limiting.accounts import Account
from gateway.relay.limiting.layout import BUCKET, CALENDAR, MINUTE, WINDOW_SECONDS

_REQUESTS: Final = 0
_TOKENS: Final = frozenset({1, 2, 3})


def ratelimit_headers(entries: Iterable[tuple[Account, int]], now: float) -> list[tuple[bytes, bytes]]:
    """Limit, remainder and when all of it is back, of the limits with the least left: one of requests, one of tokens.

    `now` is seconds since the epoch by Valkey's clock. Limits of money and of requests at once have no such fields.
    """
    requests = tokens = None
    requests_left = tokens_left = 0
    for account, index in entries:
        if index == _REQUESTS:
            left = account.left + account.free
            if requests is None or left < requests_left:
                requests, requests_left = account, left
        elif index in _TOKENS:
            left = account.left + account.free
            if tokens is None or left < tokens_left:
                tokens, tokens_left = account, left
    fields: list[tuple[bytes, bytes]] = []
    if requests is not None:
        fields += [
            (b"x-ratelimit-limit-requests", b"%d" % requests.amount),
            (b"x-ratelimit-remaining-requests", b"%d" % (requests_left if requests_left > 0 else 0)),
            (b"x-ratelimit-reset-requests", format_reset(reset_seconds(requests, now))),
        ]
    if tokens is not None:
        fields += [
            (b"x-ratelimit-limit-tokens", b"%d" % tokens.amount),
            (b"x-ratelimit-remaining-tokens", b"%d" % (tokens_left if tokens_left > 0 else 0)),
            (b"x-ratelimit-reset-tokens", format_reset(reset_seconds(tokens, now))),
        ]
    return fields


def reset_seconds(account: Account, now: float) -> float:
    """When a limit is whole again, at the latest, if nothing more is used."""
    if account.kind == CALENDAR:
        return max(0.0, account.counter.end - now)
    missing = account.amount - account.remaining()
    if missing <= 0:
        return 0.0
    if account.kind == MINUTE:
        return WINDOW_SECONDS
    if account.kind == BUCKET:
        return missing / account.rate if account.rate > 0 else 0.0
    return 0.0


def format_reset(seconds: float) -> bytes:
    """As OpenAI writes a duration: `20ms`, `1s`, `6m0s`, `2h3m4s`."""
    if seconds <= 0:
        return b"0s"
    if seconds < 1:
        return b"%dms" % max(1, round(seconds * 1000))
    whole = round(seconds)
    minutes, second = divmod(whole, 60)
    if not minutes:
        return b"%ds" % second
    hours, minute = divmod(minutes, 60)
    return b"%dh%dm%ds" % (hours, minute, second) if hours else b"%dm%ds" % (minute, second)
