"""What pages of the console need: steps of instances, and the end of their engines' logs while somebody reads them."""

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

import core.ids


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0011_memory_history")]

    operations = [
        migrations.CreateModel(
            name="InstanceEvent",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=5)),
                ("value", models.CharField(max_length=12)),
                ("before", models.CharField(blank=True, max_length=12)),
                ("through", models.JSONField(blank=True, default=list)),
                ("reason", models.CharField(blank=True, max_length=1000)),
                ("by", models.CharField(max_length=8)),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "instance",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="events", to="gpupool.instance"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["instance", "id"], name="gpupool_instanceevent_of"),
                    models.Index(fields=["at"], name="gpupool_instanceevent_at"),
                ],
            },
        ),
        migrations.CreateModel(
            name="InstanceLog",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("wanted_until", models.DateTimeField()),
                ("text", models.TextField(blank=True)),
                ("cut", models.BooleanField(default=False)),
                ("told_at", models.DateTimeField(null=True)),
                (
                    "instance",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="log", to="gpupool.instance"
                    ),
                ),
            ],
            options={"indexes": [models.Index(fields=["wanted_until"], name="gpupool_instancelog_wanted")]},
        ),
    ]
