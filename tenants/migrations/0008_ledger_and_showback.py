"""Adjustments and shares of GPU time; triggers that keep the books append-only; hours and days out of the minutes."""

import core.ids
from django.db import migrations, models

GUARD_BOOKS = """
CREATE FUNCTION tenants_books_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END
$$;
CREATE TRIGGER tenants_adjustment_no_change BEFORE UPDATE OR DELETE ON tenants_adjustment
    FOR EACH ROW EXECUTE FUNCTION tenants_books_append_only();
CREATE TRIGGER tenants_price_no_change BEFORE UPDATE ON tenants_price
    FOR EACH ROW EXECUTE FUNCTION tenants_books_append_only();
"""
UNGUARD_BOOKS = """
DROP TRIGGER tenants_price_no_change ON tenants_price;
DROP TRIGGER tenants_adjustment_no_change ON tenants_adjustment;
DROP FUNCTION tenants_books_append_only();
"""

SUMS = (
    "requests, failures, cancelled, input_tokens, cached_tokens, output_tokens, duration_ms, ttft_ms, ttft_count, "
    "cost_micros"
)
SUMMED = ", ".join(f"sum({name})" for name in SUMS.split(", "))


def fill(table: str, unit: str) -> str:
    return (
        f"INSERT INTO {table} (tenant_id, key_id, model, {unit}, {SUMS}) "
        f"SELECT tenant_id, key_id, model, date_trunc('{unit}', minute, 'UTC'), {SUMMED} "
        "FROM tenants_usageminute GROUP BY 1, 2, 3, 4 ON CONFLICT DO NOTHING"
    )


class Migration(migrations.Migration):
    dependencies = [("tenants", "0007_limits_and_prices")]

    operations = [
        migrations.CreateModel(
            name="Adjustment",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("kind", models.CharField(choices=[("credit", "Credit"), ("correction", "Correction")], max_length=10)),
                ("amount_micros", models.BigIntegerField()),
                ("month", models.CharField(max_length=7)),
                ("reason", models.CharField(max_length=200)),
                ("usage_record_id", models.UUIDField(null=True)),
                ("created_by", models.UUIDField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "indexes": [models.Index(fields=["tenant_id", "month"], name="tenants_adj_tenant__b9095c_idx")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("amount_micros", 0), _negated=True), name="tenants_adjustment_not_zero"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("kind", "credit"), _negated=True), ("amount_micros__lt", 0), _connector="OR"
                        ),
                        name="tenants_credit_is_negative",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="GpuShare",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("hour", models.DateTimeField()),
                ("instance_id", models.UUIDField()),
                ("tenant_id", models.UUIDField(null=True)),
                ("model", models.CharField(max_length=200)),
                ("version_id", models.UUIDField(null=True)),
                ("gpus", models.PositiveSmallIntegerField()),
                ("busy_ms", models.BigIntegerField(default=0)),
                ("idle_ms", models.BigIntegerField(default=0)),
                ("warm_ms", models.BigIntegerField(default=0)),
                ("cost_micros", models.BigIntegerField(default=0)),
                ("price_id", models.UUIDField(null=True)),
            ],
            options={
                "indexes": [models.Index(fields=["tenant_id", "hour"], name="tenants_gpu_tenant__9654f1_idx")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("hour", "instance_id", "tenant_id"), name="tenants_gpushare_once", nulls_distinct=False
                    )
                ],
            },
        ),
        migrations.RunSQL(GUARD_BOOKS, reverse_sql=UNGUARD_BOOKS),
        migrations.RunSQL(fill("tenants_usagehour", "hour"), reverse_sql=migrations.RunSQL.noop),
        migrations.RunSQL(fill("tenants_usageday", "day"), reverse_sql=migrations.RunSQL.noop),
    ]
