"""File descriptors: a relay needs two a request, and most shells allow 1,024 a process."""

import resource
from typing import Final

_OTHER_FILES: Final = 256  # spool, database, Valkey, logs, listeners
_FILES_PER_CONNECTION: Final = 2  # the client's and the engine's


def allow_connections(cap: int) -> int:
    """Raise this process's soft limit as far as `cap` client connections need; how many it allows at last.

    With fewer than asked for, the cap is to be lowered: running out of descriptors stops `accept`
    without a word, while a connection over the cap is told 503.
    """
    needed = cap * _FILES_PER_CONNECTION + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError):
            pass  # macOS refuses more than it has compiled in, whatever the hard limit says
    if soft == resource.RLIM_INFINITY:
        return cap
    return max(1, min(cap, (soft - _OTHER_FILES) // _FILES_PER_CONNECTION))
