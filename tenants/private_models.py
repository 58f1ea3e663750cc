"""Whose own private model a name is. The catalogue is above this app: whoever can read it is put in.

`config` puts `gpupool`'s reader in when Django starts; without one no model is private.
"""

from collections.abc import Callable, Mapping
from uuid import UUID

Reader = Callable[[], Mapping[str, UUID]]

_readers: list[Reader] = []


def install_reader(reader: Reader) -> None:
    """Ask `reader` from now on, and no other."""
    _readers[:] = [reader]


def read_owners() -> Mapping[str, UUID]:
    """Name -> tenant, of every model that is one tenant's alone."""
    return _readers[0]() if _readers else {}
