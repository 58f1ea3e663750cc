"""From an artefact's URI to a file on this node."""

import importlib.util
import stat
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit


class ArtefactMissing(Exception):
    """There is no such file here (yet); the message is a sentence for the operator."""


class ArtefactUriRefused(ValueError):
    """The URI means nothing to this agent; the message is a sentence for the operator."""


def locate(uri: str) -> Path:
    """The file that `package:NAME/PATH` or `file:///PATH` names.

    A package is only looked up, never imported. Raises ArtefactMissing or ArtefactUriRefused.
    """
    scheme, _, rest = uri.partition(":")
    if scheme == "package":
        path = _in_package(uri, rest)
    elif scheme == "file":
        path = _absolute(uri)
    else:
        raise ArtefactUriRefused(f"Artefact {uri!r} is neither package:NAME/PATH nor file:///PATH.")
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ArtefactMissing(f"{path} is a folder, not a model file.")
        if not stat.S_ISREG(mode):  # opening a pipe waits for who writes to it
            raise ArtefactMissing(f"{path} is a pipe or a device, not a model file.")
        with open(path, "rb"):
            return path
    except FileNotFoundError:
        raise ArtefactMissing(f"There is no file {path} on this node.") from None
    except OSError as error:
        raise ArtefactMissing(f"{path} cannot be read: {error.strerror}.") from error


def read_head(path: Path, length: int) -> tuple[bytes, int]:
    """The first `length` bytes of a file (fewer when it is shorter) and its size in bytes. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(length), path.stat().st_size


def _in_package(uri: str, rest: str) -> Path:
    package, _, inside = rest.partition("/")
    relative = PurePosixPath(inside)
    if not package.isidentifier() or not inside or relative.is_absolute() or ".." in relative.parts or "\0" in inside:
        raise ArtefactUriRefused(f"Artefact {uri!r} does not look like package:NAME/PATH.")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ArtefactMissing(f"The Python package {package} is not installed on this node.")
    folders = [Path(location) for location in spec.submodule_search_locations]
    return next((folder / relative for folder in folders if (folder / relative).exists()), folders[0] / relative)


def _absolute(uri: str) -> Path:
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise ArtefactUriRefused(f"Artefact {uri!r} does not look like file:///PATH with an absolute path.") from error
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute() or ".." in path.parts or "\0" in str(path):
        raise ArtefactUriRefused(f"Artefact {uri!r} does not look like file:///PATH with an absolute path.")
    return path
