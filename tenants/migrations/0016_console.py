"""What pages of the console need."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0015_latency")]

    operations: list[object] = []
