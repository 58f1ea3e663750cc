"""The node's own range of ports for engines.

A port is handed out, never probed: the engine itself binds it, and when it was taken after all the next
one is tried. Probing first and binding later would be a race.
"""

from collections.abc import Collection


class NoPortLeft(Exception):
    """Every port of the range is given out; the message is a sentence for the operator."""


class PortRange:
    """Ports `first` to `first + count - 1`, given out in a circle so that a refused one is not the next again."""

    def __init__(self, first: int, count: int) -> None:
        """Raises ValueError for a range that is empty or ends beyond 65535."""
        if count < 1 or first < 1 or first + count - 1 > 65_535:
            raise ValueError(f"there are no {count} ports from {first}")
        self._first = first
        self._count = count
        self._next = 0

    def __len__(self) -> int:
        return self._count

    def take(self, in_use: Collection[int], extra: int = 0) -> int:
        """The first of `1 + extra` ports in a row that no engine of this node has. Raises NoPortLeft."""
        for step in range(self._count):
            offset = (self._next + step) % self._count
            block = range(self._first + offset, self._first + offset + 1 + extra)
            if offset + extra < self._count and not any(port in in_use for port in block):
                self._next = (offset + 1 + extra) % self._count
                return self._first + offset
        last = self._first + self._count - 1
        if extra:
            raise NoPortLeft(f"No {1 + extra} engine ports in a row are left ({self._first} to {last}).")
        raise NoPortLeft(f"All {self._count} engine ports ({self._first} to {last}) are in use.")
