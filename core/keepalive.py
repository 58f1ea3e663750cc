"""How soon a server that went without a word is noticed: whoever waits for it waits for up to two hours else."""

from collections.abc import Mapping
from typing import Final

POSTGRES_KEEPALIVE: Final[Mapping[str, int]] = {
    "tcp_user_timeout": 10_000,  # milliseconds
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
}
"""Options of libpq; seconds where nothing else is said."""
