"""What services refuse, in a form that forms, the control API and commands can show."""

from collections.abc import Sequence


class InvalidInput(ValueError):
    """A value that a service does not accept: `field` names it, `message` says why in a sentence."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        self.message = message
        super().__init__(f"{field}: {message}")


class Conflict(Exception):
    """A write that does not fit the state things are in now; `message` says what is in the way. HTTP 409.

    `reasons`: each thing that is in the way as a sentence, where there may be several.
    """

    def __init__(self, message: str, *, reasons: Sequence[str] = ()) -> None:
        self.message = message
        self.reasons = tuple(reasons)
        super().__init__(message)
