"""On which side pages stand that both have (requests, objectives, webhooks): the console, or one tenant's portal."""

from dataclasses import dataclass

from django.urls import reverse

from tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class Side:
    """Console, or the portal of one tenant."""

    tenant: Tenant | None  # of the portal

    @property
    def portal(self) -> bool:
        return self.tenant is not None

    def address(self, name: str, *args: object) -> str:
        """Of `console-NAME` or `portal-NAME`."""
        if self.tenant is None:
            return reverse(f"console-{name}", args=args)
        return reverse(f"portal-{name}", args=(self.tenant.slug, *args))
