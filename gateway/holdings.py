"""What the gateway holds about tenants: what they said and were told; see tenants.erasure."""

from typing import Final

from gateway import models as rows
from tenants.erasure import Held, hold

HELD: Final = (
    Held(rows.StoredResponse, tenant="tenant_id", bulky=True),
    Held(rows.StoredConversation, tenant="tenant_id", bulky=True),
)

NOBODYS: Final = frozenset({"gateway.EndedSpool", "gateway.EngineReading", "gateway.EngineDrift"})
"""Models whose rows tell of no tenant and nobody."""


def register() -> None:
    """Say all of it; when Django starts."""
    hold(*HELD)
