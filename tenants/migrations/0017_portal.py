"""What pages of the portal need."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0016_console")]

    operations: list[object] = []
