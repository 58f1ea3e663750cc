"""What limits count, and over which time, in the reader's language."""

from dashboard import labels


def metric_word(value: str) -> str:
    """ "input_tokens" -> "Input tokens"; what is unknown stays as it is."""
    return labels.word("metric", value)


def window_word(value: str) -> str:
    """ "minute" -> "a minute"."""
    return labels.word("window", value)
