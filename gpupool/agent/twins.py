"""Two sources tell of one error: NVML's event and the kernel log's line. It is one event; a repeat is a second one."""

from collections import deque
from dataclasses import dataclass
from typing import Final

WINDOW_SECONDS: Final = 5.0
_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one source saw. `device` names the same device for both sources."""

    source: str
    device: str
    code: int
    at: float  # seconds since the epoch


class Twins:
    """Pairs what two sources say, one to one: of three errors that both tell of, three stay."""

    def __init__(self) -> None:
        self._single: deque[Sighting] = deque(maxlen=_MOST)

    def is_second(self, sighting: Sighting) -> bool:
        """Whether another source told of this very error already. Each earlier sighting answers for one later."""
        self._forget_before(sighting.at - 2 * WINDOW_SECONDS)
        for other in self._single:
            if (
                other.source != sighting.source
                and (other.device, other.code) == (sighting.device, sighting.code)
                and abs(other.at - sighting.at) <= WINDOW_SECONDS
            ):
                self._single.remove(other)
                return True
        self._single.append(sighting)
        return False

    def _forget_before(self, at: float) -> None:
        while self._single and self._single[0].at < at:
            self._single.popleft()
