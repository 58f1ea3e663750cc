"""What pages keep about people; see tenants.erasure."""

from typing import Final

from dashboard import models as rows
from tenants.erasure import Held, hold

HELD: Final = (
    Held(rows.SavedView, tenant="tenant_id", people=("person_id",)),
    Held(rows.Export, tenant="tenant_id", people=("person_id",)),
    Held(rows.ExportPart, tenant="export__tenant_id", people=("export__person_id",), bulky=True),
)

NOBODYS: Final[frozenset[str]] = frozenset()
"""Models whose rows tell of no tenant and nobody."""


def register() -> None:
    """Say all of it; when Django starts."""
    hold(*HELD)
