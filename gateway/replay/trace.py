"""Reading request traces in the Azure LLM inference format: when, and how many tokens in and out.

Source: Patel et al., Splitwise, ISCA 2024 (AzurePublicDataset, AzureLLMInferenceTrace).
"""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_GZIP_MAGIC: Final = b"\x1f\x8b"


class TraceError(Exception):
    """The trace cannot be used; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request."""

    at_seconds: float  # since the first one of the trace
    context_tokens: int
    generated_tokens: int


def read_trace(path: Path, *, limit: int) -> list[TraceRequest]:
    """The first `limit` requests of a CSV, plain or gzip, in order of time.

    Raises TraceError for a file that is missing, damaged, without rows or of other columns.
    """
    try:
        with _open(path) as lines:
            requests = _parse(lines, path.name, limit)
    except FileNotFoundError:
        raise TraceError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise TraceError(f"{path} is a folder, not a trace") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TraceError(f"{path.name} is damaged: its gzip data ends early or is not gzip") from None
    except (UnicodeDecodeError, csv.Error):
        raise TraceError(f"{path.name} is not a CSV text file") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from None
    if not requests:
        raise TraceError(f"{path.name} has no requests")
    return requests


@contextmanager
def _open(path: Path) -> Iterator[io.TextIOBase]:
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP_MAGIC  # by content: a name says little
        raw.seek(0)
        with io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if packed else raw, encoding="utf-8-sig", newline="") as text:
            yield text


def _parse(lines: io.TextIOBase, name: str, limit: int) -> list[TraceRequest]:
    reader = csv.DictReader(lines)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise TraceError(
            f"{name} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}: "
            f"an Azure LLM trace has {', '.join(COLUMNS)}"
        )
    rows: list[tuple[datetime, int, int]] = []
    for row in reader:
        if len(rows) >= limit:
            break
        try:
            rows.append((datetime.fromisoformat(row[COLUMNS[0]]), *_token_counts(row)))
        except (TypeError, ValueError):
            raise TraceError(f"{name}, line {reader.line_num}: not a time and two token counts") from None
    if not rows:
        return []
    try:
        rows.sort(key=lambda row: row[0])
        first = rows[0][0]
        return [TraceRequest((at - first).total_seconds(), context, generated) for at, context, generated in rows]
    except TypeError:
        raise TraceError(f"{name} mixes times with and without a zone") from None


def _token_counts(row: dict[str, str]) -> tuple[int, int]:
    context, generated = int(row[COLUMNS[1]]), int(row[COLUMNS[2]])
    if context < 0 or generated < 0:
        raise ValueError("a negative token count")
    return context, generated
