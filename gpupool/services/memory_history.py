"""Writes the history of the devices' memory, and forgets it."""

from uuid import UUID

from django.db import connection

from gpupool.models import MemoryFrame

_FORGET = "UPDATE gpupool_deviceminute SET parts = parts - %s WHERE parts ? %s"


def forget_tenant(tenant_id: UUID) -> None:
    """Frames have names of tenants and models: all of them go, a quarter of an hour. Minutes have its id alone."""
    MemoryFrame.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute(_FORGET, [str(tenant_id), str(tenant_id)])
