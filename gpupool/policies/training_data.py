"""What a file of examples has to be: JSON Lines, UTF-8, one example a line, faults told with the line's number."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

LONGEST_LINE_BYTES: Final = 4 * 1024 * 1024

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_decode = msgspec.json.Decoder().decode


class BadExample(ValueError):
    """A line that is no example; `line` counts from 1, `message` is a sentence that names it."""

    def __init__(self, line: int, why: str) -> None:
        self.line = line
        self.message = f"Line {line}: {why}"
        super().__init__(self.message)


def count_examples(body: bytes) -> int:
    """How many examples the file has. Raises BadExample for the first line that is none, and for an empty file."""
    count = 0
    for number, line in _lines(body):
        if not line.strip():
            raise BadExample(number, "it is empty.")
        if len(line) > LONGEST_LINE_BYTES:
            raise BadExample(number, f"it is longer than {LONGEST_LINE_BYTES} bytes.")
        try:
            example = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadExample(number, f"it is not JSON ({error}).") from error
        if (fault := _fault(example)) is not None:
            raise BadExample(number, fault)
        count += 1
    if not count:
        raise BadExample(1, "the file is empty.")
    return count


def _lines(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Without copying the file: number and line; the end of the last line begins no further one."""
    start = number = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        number += 1
        yield number, body[start:end]
        start = end + 1


def _fault(example: Any) -> str | None:
    """What keeps a line from being an example of a chat, of a prompt with its completion, or of a preference."""
    if not isinstance(example, dict):
        return "it is not a JSON object."
    if "messages" in example:
        return _messages_fault(example["messages"], answered=True)
    if "prompt" in example or "completion" in example:
        if isinstance(example.get("prompt"), str) and isinstance(example.get("completion"), str):
            return None
        return "'prompt' and 'completion' have to be texts, both."
    if "input" in example:
        asked, members = example["input"], ("preferred_output", "non_preferred_output")
        fault = _messages_fault(asked.get("messages") if isinstance(asked, Mapping) else None, answered=False)
        if fault is not None:
            return f"in 'input': {fault}"
        for member in members:
            if (fault := _messages_fault(example.get(member), answered=True)) is not None:
                return f"in '{member}': {fault}"
        return None
    return "it has neither 'messages' nor 'prompt' and 'completion' nor 'input'."


def _messages_fault(messages: Any, *, answered: bool) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "'messages' has to be a list with at least one message."
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            return f"message {number} is not an object."
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            return f"message {number} has no role that is known."
        content = message.get("content")
        if isinstance(content, (str, list)) or (content is None and (message.get("tool_calls") or role == "function")):
            continue
        return f"message {number} has no content."
    if answered and not any(message["role"] == "assistant" for message in messages):
        return "there is no message of the assistant to learn from."
    return None
