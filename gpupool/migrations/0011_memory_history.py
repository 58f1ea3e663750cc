"""What devices held, over time; and what engines tell of their memory."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0010_agents")]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="adapters_bytes",
            field=models.BigIntegerField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="instance",
            name="compute_bytes",
            field=models.BigIntegerField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="instance",
            name="weights_bytes",
            field=models.BigIntegerField(blank=True, editable=False, null=True),
        ),
        migrations.CreateModel(
            name="MemoryFrame",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(unique=True)),
                ("whole", models.BooleanField()),
                ("payload", models.BinaryField()),
            ],
        ),
        migrations.CreateModel(
            name="DeviceMinute",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("minute", models.DateTimeField(db_index=True)),
                ("size_mib", models.BigIntegerField(null=True)),
                ("parts", models.JSONField()),
                (
                    "device",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memory_minutes",
                        to="gpupool.device",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("device", "minute"), name="gpupool_memory_minute_once")
                ],
            },
        ),
    ]
