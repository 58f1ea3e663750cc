"""How much of a limit is used at this moment. The counters are not in the database: whoever can read them is put in.

`gateway` puts its reader in when Django starts; without one, or when counters cannot be read, nobody knows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Standing:
    """Units of the limit's metric; `reset_seconds` until all of it is back, if nothing more is used."""

    used: int
    reserved: int  # by requests under way
    remaining: int
    reset_seconds: int


Reader = Callable[[Sequence[UUID]], Mapping[UUID, Standing]]

_readers: list[Reader] = []


def install_reader(reader: Reader) -> None:
    """Ask `reader` from now on, and no other."""
    _readers[:] = [reader]


def read_standings(limit_ids: Sequence[UUID]) -> Mapping[UUID, Standing]:
    """Of each limit that can be read now; the others are absent."""
    return _readers[0](limit_ids) if _readers and limit_ids else {}
