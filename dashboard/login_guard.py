"""Slows the guessing of passwords down: so many attempts for one account from one address, then a pause."""

import hashlib
from typing import Final

import structlog
from django.core.cache import cache
from redis.exceptions import RedisError

ATTEMPTS: Final = 10
"""Attempts for one account from one address within PAUSE_SECONDS; a success clears the count."""

PAUSE_SECONDS: Final = 15 * 60

log = structlog.get_logger(__name__)


class LoginGuard:
    """Counts in the cache, so for all web processes together.

    The account and the address count together: guessing elsewhere locks nobody out of their own account.
    """

    def __init__(self, account: str, address: str) -> None:
        # Hashed: a cache key may not hold every character, and should not list people.
        name = hashlib.sha256(f"{address}\n{account.strip().lower()}".encode()).hexdigest()
        self._key = f"login:{name}"

    def admit(self) -> bool:
        """Count an attempt before it is made; False: refuse it unseen, whatever the password is.

        A cache that is away lets everyone try: people must get in while it is mended.
        """
        try:
            cache.add(self._key, 0, PAUSE_SECONDS)
            return cache.incr(self._key) <= ATTEMPTS
        except ValueError:  # it ran out between the two
            return True
        except RedisError as error:
            log.warning("login_guard_failed", error=str(error))
            return True

    def forget(self) -> None:
        """After a success."""
        try:
            cache.delete(self._key)
        except RedisError as error:
            log.warning("login_guard_failed", error=str(error))
