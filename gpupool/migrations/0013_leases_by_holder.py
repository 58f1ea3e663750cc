"""Leases are looked up by who holds them, for each instance of a list and under every claim."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0012_console")]

    operations = [
        migrations.AddIndex(
            model_name="lease",
            index=models.Index(
                condition=models.Q(("released_at__isnull", True)), fields=["holder"], name="gpupool_lease_held"
            ),
        ),
    ]
