"""How long requests took, by stage and by histogram; what limits refused."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models


def _sums() -> "list[tuple[str, models.Field]]":
    return [
        ("model", models.CharField(max_length=200)),
        ("version_id", models.UUIDField(null=True)),
        *((name, models.BigIntegerField(default=0)) for name in ("requests", "failures", "faults", "cancelled")),
        *(
            (name, ArrayField(base_field=models.BigIntegerField(), default=list, size=None))
            for name in ("ttft", "tpot", "queue", "duration")
        ),
    ]


class Migration(migrations.Migration):
    dependencies = [("tenants", "0014_audit_guard")]

    operations = [
        migrations.CreateModel(
            name="LatencyHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                *_sums(),
                ("tenant_id", models.UUIDField()),
                ("hour", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="LatencyMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                *_sums(),
                ("tenant_id", models.UUIDField()),
                ("minute", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="ModelLatencyHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                *_sums(),
                ("hour", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="ModelLatencyMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                *_sums(),
                ("minute", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="RefusalMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tenant_id", models.UUIDField(null=True)),
                ("key_id", models.UUIDField(null=True)),
                ("model", models.CharField(blank=True, max_length=200)),
                ("code", models.CharField(max_length=64)),
                ("status", models.PositiveSmallIntegerField()),
                ("metric", models.CharField(blank=True, max_length=32)),
                ("window", models.CharField(blank=True, max_length=32)),
                ("minute", models.DateTimeField()),
                ("refusals", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.AddField(
            model_name="usagerecord",
            name="connect_ms",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="usagerecord",
            name="first_decode_ms",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="usagerecord",
            name="queue_ms",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="usagerecord",
            name="tokenise_ms",
            field=models.FloatField(null=True),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(fields=["model", "-id"], name="tenants_usage_model"),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(
                condition=models.Q(("outcome", "success"), _negated=True), fields=["-id"], name="tenants_usage_unwell"
            ),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(
                condition=models.Q(("outcome", "success"), _negated=True),
                fields=["tenant_id", "-id"],
                name="tenants_usage_tenant_unwell",
            ),
        ),
        migrations.AddIndex(
            model_name="latencyhour",
            index=models.Index(fields=["hour"], name="tenants_lat_hour_e10c2e_idx"),
        ),
        migrations.AddIndex(
            model_name="latencyhour",
            index=models.Index(fields=["tenant_id", "hour"], name="tenants_lat_tenant__9dc06e_idx"),
        ),
        migrations.AddConstraint(
            model_name="latencyhour",
            constraint=models.UniqueConstraint(
                fields=("tenant_id", "model", "version_id", "hour"),
                name="tenants_latencyhour_once",
                nulls_distinct=False,
            ),
        ),
        migrations.AddIndex(
            model_name="latencyminute",
            index=models.Index(fields=["minute"], name="tenants_lat_minute_29711f_idx"),
        ),
        migrations.AddIndex(
            model_name="latencyminute",
            index=models.Index(fields=["tenant_id", "minute"], name="tenants_lat_tenant__c1055a_idx"),
        ),
        migrations.AddConstraint(
            model_name="latencyminute",
            constraint=models.UniqueConstraint(
                fields=("tenant_id", "model", "version_id", "minute"),
                name="tenants_latencyminute_once",
                nulls_distinct=False,
            ),
        ),
        migrations.AddIndex(
            model_name="modellatencyhour",
            index=models.Index(fields=["hour"], name="tenants_mod_hour_4ba1a2_idx"),
        ),
        migrations.AddConstraint(
            model_name="modellatencyhour",
            constraint=models.UniqueConstraint(
                fields=("model", "version_id", "hour"), name="tenants_modellatencyhour_once", nulls_distinct=False
            ),
        ),
        migrations.AddIndex(
            model_name="modellatencyminute",
            index=models.Index(fields=["minute"], name="tenants_mod_minute_5f7453_idx"),
        ),
        migrations.AddConstraint(
            model_name="modellatencyminute",
            constraint=models.UniqueConstraint(
                fields=("model", "version_id", "minute"), name="tenants_modellatencyminute_once", nulls_distinct=False
            ),
        ),
        migrations.AddIndex(
            model_name="refusalminute",
            index=models.Index(fields=["minute"], name="tenants_ref_minute_6d718a_idx"),
        ),
        migrations.AddIndex(
            model_name="refusalminute",
            index=models.Index(fields=["tenant_id", "minute"], name="tenants_ref_tenant__996998_idx"),
        ),
        migrations.AddConstraint(
            model_name="refusalminute",
            constraint=models.UniqueConstraint(
                fields=("tenant_id", "key_id", "model", "code", "metric", "window", "minute"),
                name="tenants_refusalminute_once",
                nulls_distinct=False,
            ),
        ),
    ]
