"""What pages of the portal need."""

from django.db import migrations, models

_SUMS = (
    "requests", "failures", "cancelled", "input_tokens", "cached_tokens", "output_tokens", "duration_ms", "ttft_ms",
    "ttft_count", "cost_micros",
)  # fmt: skip
_FILL = (
    "INSERT INTO tenants_tenant{unit} (tenant_id, model, {unit}, " + ", ".join(_SUMS) + ") "
    "SELECT tenant_id, model, {unit}, " + ", ".join(f"sum({name})" for name in _SUMS) + " "
    "FROM tenants_usage{unit} GROUP BY 1, 2, 3"
)


def _sums() -> "list[tuple[str, models.Field]]":
    return [
        (
            name,
            models.FloatField(default=0)
            if name in ("duration_ms", "ttft_ms")
            else models.BigIntegerField(default=0, db_default=0)
            if name == "cost_micros"
            else models.BigIntegerField(default=0),
        )
        for name in _SUMS
    ]


class Migration(migrations.Migration):
    dependencies = [("tenants", "0016_console")]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="purpose",
            field=models.CharField(
                blank=True,
                choices=[("", "An application"), ("playground", "The portal's playground")],
                db_default="",
                default="",
                editable=False,
                max_length=12,
            ),
        ),
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(fields=["tenant", "name", "id"], name="tenants_apikey_by_name"),
        ),
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(fields=["tenant", "last_four"], name="tenants_apikey_by_ending"),
        ),
        migrations.AddConstraint(
            model_name="apikey",
            constraint=models.UniqueConstraint(
                condition=models.Q(("purpose", "playground"), ("revoked_at__isnull", True)),
                fields=("tenant", "created_by"),
                name="tenants_apikey_playground",
            ),
        ),
        migrations.CreateModel(
            name="TenantDay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tenant_id", models.UUIDField()),
                ("model", models.CharField(max_length=200)),
                *_sums(),
                ("day", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["day"], name="tenants_ten_day_c321e6_idx")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "day", "model"), name="tenants_tenantday_once")
                ],
            },
        ),
        migrations.RunSQL(_FILL.format(unit="day"), migrations.RunSQL.noop),
        migrations.CreateModel(
            name="TenantHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tenant_id", models.UUIDField()),
                ("model", models.CharField(max_length=200)),
                *_sums(),
                ("hour", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["hour"], name="tenants_ten_hour_c7a11e_idx")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "hour", "model"), name="tenants_tenanthour_once")
                ],
            },
        ),
        migrations.RunSQL(_FILL.format(unit="hour"), migrations.RunSQL.noop),
    ]
