"""What `nvidia-smi -q` prints, with or without `-x`, as one tree of named fields.

The XML's tags and the text's labels are the same words: `fb_memory_usage` and `FB Memory Usage`. Both become the
first form, so that one reader serves both.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree

from gpupool.discovery.tolerant import plain, words

LARGEST_REPORT_BYTES: Final = 2 * 1024 * 1024  # sixteen GPUs with all their clocks are some 400 KiB
_DEEPEST: Final = 32  # it is 6 with MIG
_ENTITY: Final = re.compile(r"<!ENTITY|<!DOCTYPE[^>]*\[", re.IGNORECASE)
_LABEL: Final = re.compile(r"[^a-z0-9]+")
_BULK: Final = "supported_clocks"  # hundreds of lines that nobody reads
_GPU_LINE: Final = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])$")
_NOT_SAID: Final = frozenset(
    {"requested functionality has been deprecated", "insufficient permissions", "gpu is lost", "gpu requires reset",
     "not found", "error", "function not found"}
)  # fmt: skip


class ReportError(Exception):
    """This is no report of nvidia-smi; the message is a sentence."""


@dataclass(slots=True)
class Field:
    """One name with a value, or with fields below it, or both."""

    name: str
    value: str = ""
    below: list["Field"] = field(default_factory=list)

    def all(self, name: str) -> list["Field"]:
        """Every field of that name right below."""
        return [each for each in self.below if each.name == name]

    def at(self, path: str) -> "Field | None":
        """The first field at a path such as `ecc_errors/volatile`."""
        found: Field | None = self
        for name in path.split("/"):
            found = next((each for each in found.below if each.name == name), None) if found is not None else None
        return found

    def raw(self, *paths: str) -> str:
        """The value at the first of these paths that is there, as it was printed."""
        for path in paths:
            found = self.at(path)
            if found is not None:
                return found.value
        return ""

    def text(self, *paths: str) -> str | None:
        """The value at the first of these paths that says something."""
        for path in paths:
            found = self.at(path)
            value = words(found.value) if found is not None else ""
            if value and value.strip("[]").lower() not in _NOT_SAID:
                return value
        return None

    def walk(self) -> Iterator["Field"]:
        """Itself and everything below."""
        yield self
        for each in self.below:
            yield from each.walk()


def label(text: str) -> str:
    """`FB Memory Usage` as the XML names it."""
    return _LABEL.sub("_", text.strip().lower()).strip("_")


def from_xml(text: str) -> Field:
    """The tree of `nvidia-smi -q -x`. Raises ReportError for what is not one.

    Entities and document types with a body are refused before anything is parsed: the tool writes none.
    """
    if len(text) > LARGEST_REPORT_BYTES:
        raise ReportError(f"The report is larger than {LARGEST_REPORT_BYTES} bytes.")
    clean = plain(text)
    begin, end = clean.find("<nvidia_smi_log"), clean.rfind("</nvidia_smi_log>")
    if begin < 0 or end < begin:
        raise ReportError("There is no nvidia_smi_log in what nvidia-smi printed.")
    if _ENTITY.search(clean):
        raise ReportError("The report defines entities, which nvidia-smi never does.")
    report = clean[begin : end + len("</nvidia_smi_log>")]
    try:
        root = ElementTree.fromstring(report)  # noqa: S314 (bounded, and entities and DTDs were refused above)
    except ElementTree.ParseError as error:
        raise ReportError(f"The report is broken XML: {error}.") from error
    return _of_element(root)


def _of_element(element: ElementTree.Element, depth: int = 0) -> Field:
    if depth > _DEEPEST:
        raise ReportError(f"The report is nested deeper than {_DEEPEST}.")
    made = Field(label(element.tag), (element.text or "").strip())
    if element.tag == "gpu":
        made.value = element.get("id", "")
    if made.name != _BULK:
        made.below = [_of_element(child, depth + 1) for child in element]
    return made


def from_text(text: str) -> Field:
    """The tree of `nvidia-smi -q`: what stands under what is told by the indentation. Raises ReportError."""
    if len(text) > LARGEST_REPORT_BYTES:
        raise ReportError(f"The report is larger than {LARGEST_REPORT_BYTES} bytes.")
    lines = plain(text).splitlines()
    start = next((number for number, line in enumerate(lines) if "NVSMI LOG" in line), None)
    if start is None:
        raise ReportError("There is no NVSMI LOG in what nvidia-smi printed.")
    root = Field("nvidia_smi_log")
    path: list[tuple[int, Field]] = [(-1, root)]
    for line in lines[start + 1 :]:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        name, colon, value = line.strip().partition(" : ")
        gpu = _GPU_LINE.match(line.rstrip())
        if gpu is not None:
            made = Field("gpu", gpu[1])
        elif colon or not line.strip().endswith(":"):
            made = Field(label(name), value.strip())
        else:
            continue
        while path[-1][0] >= indent:
            path.pop()
        if len(path) > _DEEPEST:
            raise ReportError(f"The report is nested deeper than {_DEEPEST}.")
        if path[-1][1].name != _BULK:
            path[-1][1].below.append(made)
        path.append((indent, made))
    if not root.below:
        raise ReportError("The report of nvidia-smi is empty.")
    return root
