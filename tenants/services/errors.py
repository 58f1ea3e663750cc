"""What services refuse, in a form that forms, DRF and commands can show."""


class InvalidInput(ValueError):
    """A value that a service does not accept: `field` names it, `message` says why in a sentence."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        self.message = message
        super().__init__(f"{field}: {message}")
