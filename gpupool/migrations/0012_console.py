"""What pages of the console need."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0011_memory_history")]

    operations: list[object] = []
