"""Which files on a disk belong to an artefact: what it names, and what an engine loads beside it."""

import os
import re
from pathlib import Path
from typing import Final

from gpupool.policies.manifest import MOST_FILES

FOLDER_MARK: Final = "config.json"  # an artefact that is a model's folder is named by this file in it
_SPLIT: Final = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")


class UnfitFolder(ValueError):
    """A folder that is no model's; the message is a sentence."""


def mounts_of(path: Path) -> tuple[Path, ...]:
    """What a sandbox shows of the disk for an artefact, read-only: its folder, its file, or its parts; nothing else.

    Links that lead to the artefact are resolved. What links in its folder lead to is not shown: whoever may write there
    would decide what an engine reads.
    """
    if path.is_dir() or path.name == FOLDER_MARK:
        return ((path if path.is_dir() else path.parent).resolve(),)
    return tuple(file.resolve() for file in files_of(path).values())


def files_of(path: Path) -> dict[str, Path]:
    """Every file of the artefact by its path within it, in order.

    A folder's files are all that are not hidden (their names begin with a dot: what downloaders leave); links to
    files count as files. A link to a folder is refused: an engine would follow it, and nobody would have looked at
    what is there. A GGUF in parts is all parts.
    Raises FileNotFoundError, OSError, UnfitFolder.
    """
    split = _SPLIT.fullmatch(path.name)
    if split:
        stem, count = split["stem"], split["count"]
        parts = [path.with_name(f"{stem}-{number:05d}-of-{count}.gguf") for number in range(1, int(count) + 1)]
        return {part.name: part for part in parts if part.exists()}
    if not path.is_dir() and path.name != FOLDER_MARK:
        path.stat()
        return {path.name: path}
    folder = path if path.is_dir() else path.parent
    found: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if linked := next((name for name in folders if (Path(parent) / name).is_symlink()), None):
            raise UnfitFolder(f"{Path(parent) / linked} is a link to a folder: put the folder itself there.")
        for name in names:
            file = Path(parent) / name
            if name.startswith(".") or (not file.is_file() and not file.is_symlink()):
                continue
            found[file.relative_to(folder).as_posix()] = file
            if len(found) > MOST_FILES:
                raise UnfitFolder(f"{folder} has more than {MOST_FILES} files, so it is not a model's folder.")
    return dict(sorted(found.items()))


def _raise(error: OSError) -> None:
    raise error
