"""What can be watched: one scope of one channel."""

from typing import NamedTuple

LONGEST_SCOPE = 128


class Topic(NamedTuple):
    channel: str
    scope: str

    def __str__(self) -> str:
        return f"{self.channel}:{self.scope}"


def parse_topic(text: str) -> Topic:
    """The topic that `str` made this of; channels have no colon in their names."""
    channel, _, scope = text.partition(":")
    return Topic(channel, scope)
