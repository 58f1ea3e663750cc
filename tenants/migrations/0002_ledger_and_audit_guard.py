"""The ledger's partitioned table, and the triggers that keep the audit log append-only.

Django cannot make a partitioned table, so the model is created in the state only and the table by SQL.
"""

from django.db import migrations, models

CREATE_LEDGER = """
CREATE TABLE tenants_usagerecord (
    id uuid NOT NULL PRIMARY KEY,
    tenant_id uuid NOT NULL,
    key_id uuid NULL,
    model varchar(200) NOT NULL,
    version_id uuid NULL,
    instance_id uuid NULL,
    engine_request_id varchar(200) NOT NULL,
    door varchar(8) NOT NULL,
    api varchar(16) NOT NULL,
    streamed boolean NOT NULL,
    outcome varchar(12) NOT NULL,
    status smallint NOT NULL CHECK (status >= 0),
    error_code varchar(64) NOT NULL,
    usage_source varchar(12) NOT NULL,
    input_tokens bigint NULL,
    cached_tokens bigint NULL,
    output_tokens bigint NULL,
    started_at timestamptz NOT NULL,
    duration_ms double precision NULL,
    ttft_ms double precision NULL,
    attempts smallint NOT NULL CHECK (attempts >= 0),
    process_id uuid NOT NULL,
    sequence bigint NOT NULL
) PARTITION BY RANGE (id);
CREATE TABLE tenants_usagerecord_default PARTITION OF tenants_usagerecord DEFAULT;
CREATE INDEX tenants_usa_tenant__218789_idx ON tenants_usagerecord (tenant_id, id DESC);
CREATE INDEX tenants_usa_key_id_e6523f_idx ON tenants_usagerecord (key_id, id DESC);
"""

GUARD_AUDIT = """
CREATE FUNCTION tenants_audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only';
END
$$;
CREATE TRIGGER tenants_audit_no_change BEFORE UPDATE OR DELETE ON tenants_auditevent
    FOR EACH ROW EXECUTE FUNCTION tenants_audit_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(CREATE_LEDGER, reverse_sql="DROP TABLE tenants_usagerecord"),
            ],
            state_operations=[
                migrations.CreateModel(
                    name="UsageRecord",
                    fields=[
                        ("id", models.UUIDField(primary_key=True, serialize=False)),
                        ("tenant_id", models.UUIDField()),
                        ("key_id", models.UUIDField(null=True)),
                        ("model", models.CharField(max_length=200)),
                        ("version_id", models.UUIDField(null=True)),
                        ("instance_id", models.UUIDField(null=True)),
                        ("engine_request_id", models.CharField(blank=True, max_length=200)),
                        ("door", models.CharField(max_length=8)),
                        ("api", models.CharField(max_length=16)),
                        ("streamed", models.BooleanField()),
                        ("outcome", models.CharField(max_length=12)),
                        ("status", models.PositiveSmallIntegerField()),
                        ("error_code", models.CharField(blank=True, max_length=64)),
                        ("usage_source", models.CharField(max_length=12)),
                        ("input_tokens", models.BigIntegerField(null=True)),
                        ("cached_tokens", models.BigIntegerField(null=True)),
                        ("output_tokens", models.BigIntegerField(null=True)),
                        ("started_at", models.DateTimeField()),
                        ("duration_ms", models.FloatField(null=True)),
                        ("ttft_ms", models.FloatField(null=True)),
                        ("attempts", models.PositiveSmallIntegerField(default=1)),
                        ("process_id", models.UUIDField()),
                        ("sequence", models.BigIntegerField()),
                    ],
                    options={
                        "indexes": [
                            models.Index(fields=["tenant_id", "-id"], name="tenants_usa_tenant__218789_idx"),
                            models.Index(fields=["key_id", "-id"], name="tenants_usa_key_id_e6523f_idx"),
                        ],
                    },
                ),
            ],
        ),
        migrations.RunSQL(
            GUARD_AUDIT,
            reverse_sql="DROP TRIGGER tenants_audit_no_change ON tenants_auditevent; "
            "DROP FUNCTION tenants_audit_append_only()",
        ),
    ]
