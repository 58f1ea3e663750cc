"""Whose own private model a name is, and whose own a version. The catalogue is above this app: whoever can read it is
put in.

`config` puts `gpupool`'s readers in when Django starts; without them nothing is private.
"""

from collections.abc import Callable, Collection, Mapping
from uuid import UUID

Reader = Callable[[], Mapping[str, UUID]]
VersionReader = Callable[[Collection[UUID]], Mapping[UUID, UUID]]

_readers: list[Reader] = []
_version_readers: list[VersionReader] = []


def install_reader(reader: Reader) -> None:
    """Ask `reader` from now on, and no other."""
    _readers[:] = [reader]


def install_version_reader(reader: VersionReader) -> None:
    """Ask `reader` of versions from now on, and no other."""
    _version_readers[:] = [reader]


def read_owners() -> Mapping[str, UUID]:
    """Name -> tenant, of every model that is one tenant's alone."""
    return _readers[0]() if _readers else {}


def read_version_owners(version_ids: Collection[UUID]) -> Mapping[UUID, UUID]:
    """Version -> tenant, of those of the versions that are one tenant's alone, also of models that others share."""
    return _version_readers[0](version_ids) if _version_readers and version_ids else {}
