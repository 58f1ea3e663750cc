"""What of a stream waits to be written, and whose turn it is: the newest report alone, and streams one after the other.

Each report says all of the node as it is. Were all of them written where the database is slow, each would be older than
the one before, and pings would wait behind them until they fail.
"""

import asyncio
from typing import Final

from msgspec.structs import replace

from gpupool.stream.intake import MOST_LOGS
from gpupool.stream.messages import LogFact, Observed

WRITES_AT_ONCE: Final = 2
"""Of all streams of a process: one that is written, and the next. Whatever else needs the database waits no longer."""

_gates: Final[dict[asyncio.AbstractEventLoop, asyncio.Semaphore]] = {}


def overtake(waiting: Observed | None, report: Observed) -> Observed:
    """The report that waits from now on: the newer one, with what the older one would have told and it does not.

    Events are told now and then until they are kept, always from the oldest on; capabilities and logs when they change.
    """
    if waiting is None:
        return report
    return replace(
        report,
        events=report.events or waiting.events,
        capabilities=report.capabilities or waiting.capabilities,
        logs=_newer_logs(waiting, report),
    )


def _newer_logs(waiting: Observed, report: Observed) -> list[LogFact]:
    told = {fact.instance_id: fact for fact in (*waiting.logs, *report.logs)}
    return list(told.values())[-MOST_LOGS:]


def shared_gate() -> asyncio.Semaphore:
    """Lets the running event loop's streams to the database, first come first served."""
    loop = asyncio.get_running_loop()
    for other in [known for known in _gates if known.is_closed()]:
        del _gates[other]
    return _gates.setdefault(loop, asyncio.Semaphore(WRITES_AT_ONCE))
