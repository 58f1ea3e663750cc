"""What a trainer tells, a JSON object a line on standard output. Whatever is not understood is left out."""

from pathlib import Path
from typing import Any, Final

import msgspec

from gpupool.training.folders import PROGRESS_FILE

MESSAGE_LENGTH: Final = 2000
_READ_BYTES: Final = 1 << 20
_MEASURES: Final = 32
_MOST_TOKENS: Final = 2**62
_MOST_STEPS: Final = 2**31 - 1
_LEVELS: Final = frozenset({"info", "warn", "error"})


class Told(msgspec.Struct, frozen=True):
    """One line: an event, a step's measures, or how many tokens were trained on so far."""

    kind: str  # message, metrics, progress
    message: str = ""
    level: str = "info"
    step: int | None = None
    trained_tokens: int | None = None
    data: dict[str, float] = {}


def read_progress(folder: Path, offset: int, *, ended: bool) -> tuple[list[Told], int]:
    """What was told from `offset` on, and the offset to go on from; a line that is not yet whole waits."""
    try:
        with (folder / PROGRESS_FILE).open("rb") as file:
            file.seek(offset)
            piece = file.read(_READ_BYTES)
    except OSError:
        return [], offset
    whole = piece.rfind(b"\n") + 1
    if whole == 0 and not ended and len(piece) < _READ_BYTES:
        return [], offset
    if whole == 0 or (ended and len(piece) < _READ_BYTES):
        whole = len(piece)  # the last line, or one that is longer than any that means something
    told = (_told(line) for line in piece[:whole].split(b"\n") if line.strip())
    return [line for line in told if line is not None], offset + whole


def _told(line: bytes) -> Told | None:
    try:
        said: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    tokens, step = _count(said.get("trained_tokens"), _MOST_TOKENS), _count(said.get("step"), _MOST_STEPS)
    match said.get("type"):
        case "event":
            level, message = said.get("level"), said.get("message")
            if not isinstance(message, str) or not message.strip():
                return None
            known = level if isinstance(level, str) and level in _LEVELS else "info"
            return Told("message", _text(message), level=known, trained_tokens=tokens)
        case "metrics":
            data = {_text(name)[:64]: value for name, value in said.items() if _is_measure(value)}
            data = dict(list(data.items())[:_MEASURES])
            loss = data.get("train_loss")
            message = f"Step {step}" if step is not None else "Metrics"
            message += f": training loss={loss:.4f}" if loss is not None else ""
            return Told("metrics", message, step=step, trained_tokens=tokens, data=data)
        case "progress":
            return Told("progress", step=step, trained_tokens=tokens)
    return None


def _is_measure(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _count(value: Any, most: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def _text(value: str) -> str:
    """As much of it as is kept, without what PostgreSQL does not keep."""
    return value.replace("\0", "")[:MESSAGE_LENGTH]
