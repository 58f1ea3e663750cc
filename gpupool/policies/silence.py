"""Whether what was told last is still so. Pure: time is an argument."""

from datetime import datetime, timedelta
from typing import Final

SILENT_AFTER: Final = timedelta(seconds=30)
"""Agents report each second. Without a report for so long, nothing that a device said of its use counts any more."""


def is_silent(node_state: str, heard: datetime | None, *, now: datetime) -> bool:
    """Of a device that its agent reported last when it was `heard`: whether that may be long over."""
    return node_state != "online" or heard is None or now - heard > SILENT_AFTER
