"""The view that the pool's control API is made of: for platform roles, readers to look and operators to change."""

from gpupool.api.permissions import PlatformRolePermission
from tenants.api.base import ControlView


class PoolView(ControlView):
    """Knows who asks, as every control view does, and lets nobody in by a tenant's role."""

    permission_classes = (PlatformRolePermission,)  # type: ignore[assignment]  # another class than the base's one
