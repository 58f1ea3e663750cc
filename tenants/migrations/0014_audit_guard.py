"""The audit log cannot be emptied either, is found by who and what, and configuration has a history.

The history is kept by triggers: whatever writes, be it a service, the back office or SQL, it is in it. Their function
and the one that makes the ledger's partitions run with the rights of their owner, so that the role of the running
processes needs none to the history itself, and none to make tables.
"""

from django.db import migrations, models

# As tenants.models.configuration.HISTORY_TABLES when this was written.
TABLES = {
    "tenants_tenant": (),
    "tenants_grant": (),
    "tenants_limit": (),
    "tenants_price": (),
    "tenants_apikey": ("digest", "last_used_at"),
    "tenants_tokenissuer": (),
}

GUARD_AUDIT = """
CREATE TRIGGER tenants_audit_no_truncate BEFORE TRUNCATE ON tenants_auditevent
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_audit_append_only();
"""

KEEP_HISTORY = """
CREATE FUNCTION tenants_keep_history() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    left_out text[] := COALESCE(TG_ARGV, '{}');
    was jsonb := CASE WHEN TG_OP = 'INSERT' THEN NULL ELSE to_jsonb(OLD) - left_out END;
    is_now jsonb := CASE WHEN TG_OP = 'DELETE' THEN NULL ELSE to_jsonb(NEW) - left_out END;
    told jsonb := COALESCE(is_now, was);
BEGIN
    IF was IS DISTINCT FROM is_now THEN
        INSERT INTO tenants_configurationchange (at, transaction, "table", object_id, tenant_id, before, after)
        VALUES (
            now(), pg_current_xact_id()::text::bigint, TG_TABLE_NAME, (told->>'id')::uuid,
            CASE WHEN TG_TABLE_NAME = 'tenants_tenant' THEN (told->>'id')::uuid ELSE (told->>'tenant_id')::uuid END,
            was, is_now
        );
    END IF;
    RETURN NULL;
END
$$;
-- Whoever may create objects must not be able to put one of theirs in the place of the history.
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION tenants_keep_history() SET search_path = %I, pg_temp', current_schema());
END $$;
INSERT INTO tenants_configurationchange (at, transaction, "table", object_id)
    VALUES (now(), pg_current_xact_id()::text::bigint, '', '00000000-0000-0000-0000-000000000000');
""" + "".join(
    f"CREATE TRIGGER {table}_history AFTER INSERT OR UPDATE OR DELETE ON {table} "
    f"FOR EACH ROW EXECUTE FUNCTION tenants_keep_history({', '.join(repr(column) for column in left_out)});\n"
    for table, left_out in TABLES.items()
)

STOP_HISTORY = "".join(f"DROP TRIGGER {table}_history ON {table};\n" for table in TABLES) + (
    "DROP FUNCTION tenants_keep_history();"
)


MAKE_PARTITIONS = """
CREATE FUNCTION tenants_make_partition(year integer, month integer) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    start timestamptz := make_timestamptz(year, month, 1, 0, 0, 0, 'UTC');
    -- The smallest UUIDv7 of that month's and the next one's first millisecond.
    low uuid := (lpad(to_hex((extract(epoch FROM start) * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid;
    high uuid := (lpad(to_hex((extract(epoch FROM (start AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC')
        * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid;
    name text := format('tenants_usagerecord_%s', to_char(start AT TIME ZONE 'UTC', 'YYYYMM'));
BEGIN
    IF year NOT BETWEEN 2020 AND 2200 THEN
        RAISE EXCEPTION 'no ledger of the year %', year;
    END IF;
    PERFORM pg_advisory_xact_lock(1734440037);  -- one maker at a time, any process
    IF to_regclass(name) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE tenants_usagerecord INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
    EXECUTE format(
        'WITH moved AS (DELETE FROM tenants_usagerecord_default WHERE id >= %L AND id < %L RETURNING *) '
        'INSERT INTO %I SELECT * FROM moved', low, high, name);
    EXECUTE format(
        'ALTER TABLE tenants_usagerecord ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name, low, high);
    RETURN name;
END
$$;
DO $$ BEGIN
    EXECUTE format(
        'ALTER FUNCTION tenants_make_partition(integer, integer) SET search_path = %I, pg_temp',
        current_schema());
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0013_conversations_and_erasure")]

    operations = [
        migrations.AddField(model_name="auditevent", name="transaction", field=models.BigIntegerField(null=True)),
        migrations.RemoveIndex(model_name="auditevent", name="tenants_aud_subject_2c003f_idx"),
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(fields=["subject_type", "-id"], name="tenants_audit_kind"),
        ),
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(fields=["subject_id", "-id"], name="tenants_audit_subject"),
        ),
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(
                condition=models.Q(("actor_id__isnull", False)), fields=["actor_id", "-id"], name="tenants_audit_actor"
            ),
        ),
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(
                fields=["action", "-id"],
                opclasses=["varchar_pattern_ops", "uuid_ops"],
                name="tenants_audit_action",
            ),
        ),
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(
                condition=models.Q(("request_id", ""), _negated=True),
                fields=["request_id"],
                name="tenants_audit_request",
            ),
        ),
        migrations.CreateModel(
            name="ConfigurationChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("transaction", models.BigIntegerField()),
                ("table", models.CharField(max_length=40)),
                ("object_id", models.UUIDField()),
                ("tenant_id", models.UUIDField(null=True)),
                ("before", models.JSONField(null=True)),
                ("after", models.JSONField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(fields=["at"], name="tenants_con_at_142b73_idx"),
                    models.Index(fields=["transaction"], name="tenants_con_transac_57f41e_idx"),
                    models.Index(fields=["tenant_id", "-id"], name="tenants_con_tenant__441bfc_idx"),
                ],
            },
        ),
        migrations.RunSQL(GUARD_AUDIT, reverse_sql="DROP TRIGGER tenants_audit_no_truncate ON tenants_auditevent"),
        migrations.RunSQL(KEEP_HISTORY, reverse_sql=STOP_HISTORY),
        migrations.RunSQL(MAKE_PARTITIONS, reverse_sql="DROP FUNCTION tenants_make_partition(integer, integer)"),
    ]
