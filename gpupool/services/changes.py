"""Collects what one transaction changed and bumps the epochs at its end, in the order in which they are locked."""

from uuid import UUID

from core.epochs import Section, bump_epoch

_ORDER = list(Section)


class Changes:
    """Each object once a section; `publish` belongs at the end of the same transaction."""

    def __init__(self) -> None:
        self._changed: dict[tuple[Section, UUID], None] = {}

    def add(self, section: Section, object_id: UUID) -> None:
        self._changed[section, object_id] = None

    def publish(self) -> None:
        """Bump every section that was added. Sorted, because two writers in opposite order would deadlock."""
        for section, object_id in sorted(self._changed, key=lambda item: (_ORDER.index(item[0]), item[1])):
            bump_epoch(section, object_id)
        self._changed.clear()
