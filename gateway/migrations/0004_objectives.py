"""Objectives, what was counted for them, their alerts and silences."""

import core.ids
import django.contrib.postgres.fields
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("gateway", "0003_stored_conversation"),
        ("tenants", "0015_latency"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Objective",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=120)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("availability", "availability"),
                            ("ttft", "ttft"),
                            ("tpot", "tpot"),
                            ("queue_wait", "queue_wait"),
                        ],
                        max_length=12,
                    ),
                ),
                ("target", models.FloatField()),
                ("threshold_seconds", models.FloatField(blank=True, null=True)),
                ("window_days", models.PositiveSmallIntegerField(default=30)),
                ("model", models.CharField(blank=True, max_length=200)),
                (
                    "tier",
                    models.CharField(
                        blank=True, choices=[("gold", "Gold"), ("silver", "Silver"), ("bronze", "Bronze")], max_length=8
                    ),
                ),
                ("version_id", models.UUIDField(blank=True, null=True)),
                ("tenants_own", models.BooleanField(default=False)),
                ("enabled", models.BooleanField(default=True)),
                ("preset", models.CharField(blank=True, max_length=40)),
                ("tallied_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="objectives",
                        to="tenants.tenant",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ObjectiveAlert",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("pair", models.CharField(max_length=12)),
                ("severity", models.CharField(choices=[("page", "page"), ("ticket", "ticket")], max_length=8)),
                (
                    "state",
                    models.CharField(
                        choices=[("firing", "firing"), ("acknowledged", "acknowledged"), ("resolved", "resolved")],
                        default="firing",
                        max_length=14,
                    ),
                ),
                ("long_burn", models.FloatField()),
                ("short_burn", models.FloatField()),
                ("opened_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("calm_since", models.DateTimeField(blank=True, null=True)),
                ("told_at", models.DateTimeField(blank=True, null=True)),
                ("told", models.PositiveIntegerField(default=0)),
                ("acknowledged_at", models.DateTimeField(blank=True, null=True)),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
                (
                    "acknowledged_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "objective",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="alerts", to="gateway.objective"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ObjectiveHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("total", models.BigIntegerField()),
                ("good", models.BigIntegerField()),
                ("buckets", django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ("hour", models.DateTimeField()),
                (
                    "objective",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="hours", to="gateway.objective"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ObjectiveMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("total", models.BigIntegerField()),
                ("good", models.BigIntegerField()),
                ("buckets", django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ("minute", models.DateTimeField()),
                (
                    "objective",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="minutes", to="gateway.objective"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Silence",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("reason", models.CharField(max_length=200)),
                ("starts_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("ends_at", models.DateTimeField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "objective",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="silences",
                        to="gateway.objective",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="silences",
                        to="tenants.tenant",
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="objective",
            index=models.Index(fields=["tenant", "-id"], name="gateway_obj_tenant__d21f0c_idx"),
        ),
        migrations.AddConstraint(
            model_name="objective",
            constraint=models.CheckConstraint(
                condition=models.Q(("target__gt", 0), ("target__lt", 1)), name="gateway_objective_target"
            ),
        ),
        migrations.AddConstraint(
            model_name="objective",
            constraint=models.CheckConstraint(
                condition=models.Q(("window_days__gte", 1)), name="gateway_objective_window"
            ),
        ),
        migrations.AddConstraint(
            model_name="objective",
            constraint=models.UniqueConstraint(
                condition=models.Q(("preset", ""), _negated=True),
                fields=("preset",),
                name="gateway_objective_preset_once",
            ),
        ),
        migrations.AddIndex(
            model_name="objectivealert",
            index=models.Index(fields=["objective", "-id"], name="gateway_obj_objecti_69936e_idx"),
        ),
        migrations.AddConstraint(
            model_name="objectivealert",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "resolved"), _negated=True),
                fields=("objective", "pair"),
                name="gateway_objectivealert_open_once",
            ),
        ),
        migrations.AddIndex(
            model_name="objectivehour",
            index=models.Index(fields=["hour"], name="gateway_obj_hour_d0cdcb_idx"),
        ),
        migrations.AddConstraint(
            model_name="objectivehour",
            constraint=models.UniqueConstraint(
                fields=("objective", "hour"), include=("total", "good"), name="gateway_objectivehour_once"
            ),
        ),
        migrations.AddIndex(
            model_name="objectiveminute",
            index=models.Index(fields=["minute"], name="gateway_obj_minute_22ecea_idx"),
        ),
        migrations.AddConstraint(
            model_name="objectiveminute",
            constraint=models.UniqueConstraint(
                fields=("objective", "minute"), include=("total", "good"), name="gateway_objectiveminute_once"
            ),
        ),
        migrations.AddIndex(
            model_name="silence",
            index=models.Index(fields=["ends_at"], name="gateway_sil_ends_at_a0d7b1_idx"),
        ),
    ]
