"""The members of a request in OpenAI's words, taken one by one by a room whose engine speaks others.

What cannot be said in the engine's words is refused with a sentence, never left out in silence.
"""

from typing import Any, Final

import msgspec

from gpupool.engines.base import CallNotSupported, OpenAICall

_ABSENT: Final = object()
_WITHOUT_EFFECT: Final = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier",
                                    "prompt_cache_key", "stream_options", "stream", "model"})  # fmt: skip
"""Members that change no token, so that an engine that does not know them loses nothing."""


class Asked:
    """`left` is what no one has taken yet. `engine` is named in refusals."""

    def __init__(self, call: OpenAICall, engine: str) -> None:
        try:
            members = msgspec.json.decode(call.body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CallNotSupported(f"{engine} cannot be asked this: the request is not JSON ({error}).") from error
        if not isinstance(members, dict):
            raise CallNotSupported(f"{engine} cannot be asked this: the request is not a JSON object.")
        self.engine = engine
        self.left: dict[str, Any] = {
            name: value for name, value in members.items() if name not in _WITHOUT_EFFECT and value is not None
        }

    def take(self, name: str, *kinds: type) -> Any:
        """The member's value, None when there is none. Raises CallNotSupported unless it is of one of `kinds`."""
        value = self.left.pop(name, None)
        if value is None or (isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)):
            return value
        raise CallNotSupported(f"{self.engine} does not take {name} in this form.")

    def number(self, name: str) -> int | float | None:
        value: int | float | None = self.take(name, int, float)
        return value

    def integer(self, name: str) -> int | None:
        value: int | None = self.take(name, int)
        return value

    def text(self, name: str) -> str | None:
        value: str | None = self.take(name, str)
        return value

    def flag(self, name: str) -> bool | None:
        value: bool | None = self.take(name, bool)
        return value

    def max_tokens(self) -> int | None:
        """Under its new name or its old one."""
        new, old = self.integer("max_completion_tokens"), self.integer("max_tokens")
        return old if new is None else new

    def stop(self) -> list[str]:
        """Stop sequences: one text or a list of them."""
        value = self.take("stop", str, list)
        stops = [value] if isinstance(value, str) else value or []
        if not all(isinstance(stop, str) for stop in stops):
            raise CallNotSupported(f"{self.engine} takes stop as text only.")
        return stops

    def prompt(self) -> str:
        """The one prompt of a completion."""
        value = self.left.pop("prompt", "")
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str):
            raise CallNotSupported(f"{self.engine} takes one prompt, as text.")
        return value

    def only(self, name: str, *neutral: object) -> None:
        """Refuse the member unless its value is one of `neutral`, which ask for nothing."""
        value = self.left.pop(name, _ABSENT)
        if value is _ABSENT or any(type(value) is type(good) and value == good for good in neutral):
            return
        raise CallNotSupported(f"{self.engine} cannot do what {name} asks for.")

    def nothing_left(self) -> None:
        """Refuse every member that has not been taken, unless it asks for nothing."""
        for name, value in self.left.items():
            if value is not False and value not in ([], {}):
                raise CallNotSupported(f"{self.engine} does not know {name}.")
