import core.ids
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("gpupool", "0003_fine_tuning"),
    ]

    operations = [
        migrations.CreateModel(
            name="DeviceEvent",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("boot_id", models.CharField(max_length=64)),
                ("sequence", models.BigIntegerField()),
                ("source", models.CharField(max_length=16)),
                ("kind", models.CharField(max_length=24)),
                ("code", models.IntegerField(null=True)),
                ("text", models.CharField(blank=True, max_length=2000)),
                ("data", models.JSONField(blank=True, default=dict)),
                ("at", models.DateTimeField()),
                ("received_at", models.DateTimeField(auto_now_add=True)),
                ("decided", models.BooleanField(default=False)),
            ],
        ),
        migrations.CreateModel(
            name="HealingAction",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("action", models.CharField(max_length=24)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("dry_run", "Dry run"),
                            ("pending", "Pending"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("superseded", "Superseded"),
                        ],
                        default="pending",
                        max_length=12,
                    ),
                ),
                ("reason", models.CharField(max_length=1000)),
                ("outcome", models.CharField(blank=True, max_length=1000)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="ModelAlias",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200, unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("gpu_tag", models.CharField(blank=True, max_length=80)),
                ("devices", models.PositiveIntegerField(default=0)),
                ("memory_bytes", models.BigIntegerField(default=0)),
                ("lendable", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name="XidRule",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("code", models.IntegerField(unique=True)),
                ("action", models.CharField(max_length=24)),
                ("note", models.CharField(blank=True, max_length=500)),
                ("provenance", models.CharField(default="operator", max_length=120)),
                ("changed_at", models.DateTimeField(auto_now=True)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.AddField(
            model_name="device",
            name="allocatable",
            field=models.BooleanField(default=True),
        ),
        migrations.AddField(
            model_name="device",
            name="capability",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="device",
            name="isolated_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="device",
            name="isolated_reason",
            field=models.CharField(blank=True, max_length=500),
        ),
        migrations.AddField(
            model_name="device",
            name="links",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name="device",
            name="partition_of",
            field=models.CharField(blank=True, max_length=200),
        ),
        migrations.AddField(
            model_name="device",
            name="processes",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name="device",
            name="regions",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name="device",
            name="simulated",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="device",
            name="tags",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name="device",
            name="telemetry",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="device",
            name="traceable_id",
            field=models.CharField(blank=True, max_length=250),
        ),
        migrations.AddField(
            model_name="instance",
            name="concurrency_cap",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="instance",
            name="device_bytes",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="instance",
            name="device_peak_bytes",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="instance",
            name="guard_state",
            field=models.CharField(blank=True, max_length=16),
        ),
        migrations.AddField(
            model_name="instance",
            name="host_memory_bytes",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="instance",
            name="kv_capacity_bytes",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="instance",
            name="last_used_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="instance",
            name="load_seconds",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="instance",
            name="memory_mode",
            field=models.CharField(
                choices=[("full", "Full"), ("mixed", "Mixed"), ("cpu", "CPU")], default="full", max_length=8
            ),
        ),
        migrations.AddField(
            model_name="instance",
            name="priority",
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="instance",
            name="tenant_id",
            field=models.UUIDField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="instance",
            name="wake_seconds",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="lease",
            name="share",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="lease",
            name="whole",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="admitted_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="card",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="checks",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="devices",
            field=models.PositiveSmallIntegerField(default=1),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="gpu_tag",
            field=models.CharField(blank=True, max_length=80),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="host_memory_bytes",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="isolation",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="last_stable_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="manifest",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="priority",
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="request_shape",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="share",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="strategy",
            field=models.CharField(default="spread", max_length=6),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="tenant_id",
            field=models.UUIDField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="topology",
            field=models.CharField(default="preferred", max_length=10),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="whole_device",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="node",
            name="capabilities",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="node",
            name="maintenance",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="node",
            name="maintenance_reason",
            field=models.CharField(blank=True, max_length=500),
        ),
        migrations.AddField(
            model_name="node",
            name="simulated",
            field=models.BooleanField(default=False),
        ),
        migrations.AlterField(
            model_name="instance",
            name="desire",
            field=models.CharField(
                choices=[("running", "Running"), ("asleep", "Asleep"), ("stopped", "Stopped")],
                default="running",
                max_length=8,
            ),
        ),
        migrations.AlterField(
            model_name="lease",
            name="lease_id",
            field=models.BigIntegerField(),
        ),
        migrations.AddIndex(
            model_name="lease",
            index=models.Index(fields=["lease_id"], name="gpupool_lease_number"),
        ),
        migrations.AddField(
            model_name="deviceevent",
            name="device",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="events", to="gpupool.device"
            ),
        ),
        migrations.AddField(
            model_name="deviceevent",
            name="node",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="events", to="gpupool.node"
            ),
        ),
        migrations.AddField(
            model_name="healingaction",
            name="device",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="healing", to="gpupool.device"
            ),
        ),
        migrations.AddField(
            model_name="healingaction",
            name="event",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="actions",
                to="gpupool.deviceevent",
            ),
        ),
        migrations.AddField(
            model_name="healingaction",
            name="instance",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="healing", to="gpupool.instance"
            ),
        ),
        migrations.AddField(
            model_name="healingaction",
            name="node",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="healing", to="gpupool.node"
            ),
        ),
        migrations.AddField(
            model_name="modelalias",
            name="model",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="aliases", to="gpupool.model"
            ),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.UniqueConstraint(fields=("tenant_id", "gpu_tag"), name="gpupool_reservation_once"),
        ),
        migrations.AddIndex(
            model_name="deviceevent",
            index=models.Index(fields=["node", "id"], name="gpupool_event_node"),
        ),
        migrations.AddIndex(
            model_name="deviceevent",
            index=models.Index(condition=models.Q(("decided", False)), fields=["id"], name="gpupool_event_undecided"),
        ),
        migrations.AddConstraint(
            model_name="deviceevent",
            constraint=models.UniqueConstraint(fields=("node", "boot_id", "sequence"), name="gpupool_deviceevent_once"),
        ),
        migrations.AddIndex(
            model_name="healingaction",
            index=models.Index(fields=["node", "id"], name="gpupool_healing_node"),
        ),
        migrations.AddIndex(
            model_name="healingaction",
            index=models.Index(fields=["state", "id"], name="gpupool_healing_state"),
        ),
    ]
