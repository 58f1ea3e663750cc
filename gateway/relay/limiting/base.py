"""What the pipeline and the settler ask of limits; see DESIGN section 3, Limits.

A request is reserved with a bound before it is forwarded and settled with what it used. The sum of what was used and
what is reserved never exceeds a limit's amount, whichever processes admit requests at the same time.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from gateway.relay.rows import LimitRow


class Charge(NamedTuple):
    """What a request is held to use (a bound), or used. Money in millionths of the currency."""

    input_tokens: int = 0
    output_tokens: int = 0
    micros: int = 0
    requests: int = 1


NOTHING: Final = Charge(requests=0)
"""What a request used that was never forwarded."""


class Reservation(Protocol):
    """Room that a request holds under all limits that take it in. Settling it twice is a no-op after the first."""

    def settle(self, used: Charge | None, sequence: int) -> None:
        """It used this much, and is row `sequence` of this process's spool (0: no row).

        None: nobody knows; it is held to have used all that was reserved. Without a row that stays reserved until the
        process has ended, since only then the ledger has a row for it. What is not used goes back to the periods that
        it was reserved in. More than was reserved is counted too.
        """

    def within(self, moment: float) -> float:
        """The moment (seconds since the epoch), or the nearest one in all periods that it is reserved in.

        What the ledger is to say of when the request started: a day's rows and its counter must be the same requests.
        """

    def headers(self) -> list[tuple[bytes, bytes]]:
        """OpenAI's `x-ratelimit-*` fields, for the limits with the least left."""


class Limiter(Protocol):
    """Reserves against limits. `limits`: those that take the request in, from `Snapshot.limits`."""

    def reserve_now(self, limits: Sequence[LimitRow], bound: Charge) -> Reservation | None:
        """Out of what this process holds, without waiting; None: it has to be asked for with `reserve`."""

    async def reserve(self, limits: Sequence[LimitRow], bound: Charge) -> Reservation:
        """Under all limits, or under none.

        Raises RateLimited or QuotaExceeded with the limit, used, reserved and reset, or StateStoreUnavailable when it
        cannot be known.
        """

    async def hold(self, limits: Sequence[LimitRow]) -> Reservation:
        """Room for one request that waits for its model, under the limits of `held_requests` among these.

        Raises as `reserve`. Settled with NOTHING and sequence 0 when it waits no more.
        """

    def acknowledged(self, sequence: int) -> None:
        """The ledger has every row of this process's spool up to that one."""

    async def run(self) -> None:
        """Keep the process's place among those that share limits, until cancelled. Nothing is granted without it."""

    async def close(self) -> None:
        """Tell what was used and give back what is held, after `run` was cancelled and the requests have ended."""
