"""A bill of materials (CycloneDX or SPDX, JSON) held against an artefact's digests. Only what is said here is read."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

MOST_COMPONENTS: Final = 50_000
_CYCLONEDX: Final = frozenset({"1.4", "1.5", "1.6", "1.7"})
_SPDX: Final = frozenset({"SPDX-2.2", "SPDX-2.3"})
_MOST_FAULTS: Final = 20


class BadSbom(ValueError):
    """It cannot be admitted; `faults` has a sentence for each thing that is missing or wrong."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__(" ".join(faults))


class Sbom(msgspec.Struct, frozen=True, kw_only=True):
    """What a bill of materials says, in short."""

    format: str  # CycloneDX 1.6, SPDX-2.3
    components: int
    digests: frozenset[str]  # SHA-256 of whatever it names


class _Part(msgspec.Struct, frozen=True):
    name: str
    version: str
    digests: tuple[str, ...]


def read_sbom(document: Any, *, artefact: Collection[str]) -> Sbom:
    """Whether the document is a bill of materials of an artefact, all of whose SHA-256 digests it names.

    Raises BadSbom with all that is wrong.
    """
    if not isinstance(document, Mapping):
        raise BadSbom(["A bill of materials is a JSON object."])
    try:
        kind, parts = _cyclonedx(document) if "bomFormat" in document else _spdx(document)
        digests = frozenset(digest for part in parts for digest in part.digests) | frozenset(_files(document))
    except (TypeError, AttributeError) as error:
        raise BadSbom(["The bill of materials does not have the members of its format."]) from error
    faults = [f"Component {part.name[:80]!r} has no version." for part in parts if part.name and not part.version]
    faults += ["A component has no name." for part in parts if not part.name]
    if len(parts) > MOST_COMPONENTS:
        faults = [f"The bill of materials has more than {MOST_COMPONENTS} components."]
    elif not parts:
        faults = ["The bill of materials names no components."]
    faults += [
        f"The bill of materials does not name the artefact's file with SHA-256 {digest}."
        for digest in sorted(artefact)
        if digest not in digests
    ]
    if faults:
        raise BadSbom(faults[:_MOST_FAULTS])
    return Sbom(format=kind, components=len(parts), digests=digests)


def _cyclonedx(document: Mapping[str, Any]) -> tuple[str, list[_Part]]:
    if document["bomFormat"] != "CycloneDX" or document.get("specVersion") not in _CYCLONEDX:
        raise BadSbom([f"CycloneDX is read in the versions {', '.join(sorted(_CYCLONEDX))}."])
    own = document.get("metadata", {}).get("component")
    parts = [_cyclonedx_part(part) for part in _all_components(document.get("components", []))]
    return f"CycloneDX {document['specVersion']}", [*parts, *([_cyclonedx_part(own)] if own else [])]


def _all_components(found: Any) -> Iterator[Mapping[str, Any]]:
    """With those within others. A stack, not recursion: somebody else nested them."""
    waiting, seen = [*found], 0
    while waiting and seen <= MOST_COMPONENTS:
        part = waiting.pop()
        seen += 1
        yield part
        waiting += part.get("components", [])


def _cyclonedx_part(part: Mapping[str, Any]) -> _Part:
    digests = [h.get("content") for h in part.get("hashes", []) if h.get("alg") == "SHA-256"]
    return _Part(_text(part.get("name")), _text(part.get("version")), _lower(digests))


def _spdx(document: Mapping[str, Any]) -> tuple[str, list[_Part]]:
    version = document.get("spdxVersion")
    if version not in _SPDX:
        raise BadSbom(["This is neither CycloneDX (bomFormat) nor SPDX 2.2 or 2.3 (spdxVersion), in JSON."])
    parts = [
        _Part(_text(part.get("name")), _text(part.get("versionInfo")), _spdx_digests(part))
        for part in document.get("packages", [])
    ]
    return str(version), parts


def _files(document: Mapping[str, Any]) -> Iterator[str]:
    """SPDX lists files beside packages; a file has no version."""
    if "spdxVersion" in document and isinstance(document.get("files"), list):
        for file in document["files"][:MOST_COMPONENTS]:
            if isinstance(file, Mapping):
                yield from _spdx_digests(file)


def _spdx_digests(part: Mapping[str, Any]) -> tuple[str, ...]:
    return _lower([c.get("checksumValue") for c in part.get("checksums", []) if c.get("algorithm") == "SHA256"])


def _lower(digests: list[Any]) -> tuple[str, ...]:
    return tuple(digest.lower() for digest in digests if isinstance(digest, str))


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
