"""How long requests took, by stage and by histogram; what limits refused."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0014_audit_guard")]

    operations: list[object] = []
