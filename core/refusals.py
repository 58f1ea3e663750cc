"""What services refuse, in a form that forms, the control API and commands can show."""


class InvalidInput(ValueError):
    """A value that a service does not accept: `field` names it, `message` says why in a sentence."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        self.message = message
        super().__init__(f"{field}: {message}")


class Conflict(Exception):
    """A write that does not fit the state things are in now; `message` says what is in the way. HTTP 409."""

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)
