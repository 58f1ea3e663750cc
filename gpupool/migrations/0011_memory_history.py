"""What devices held, over time."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0010_agents")]

    operations: list[object] = []
