"""When a row of the ledger was written, for the live tail of requests. Building its indexes holds up drains, not
requests: some seconds for a million rows."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0017_portal"),
    ]

    operations = [
        migrations.AddField(
            model_name="usagerecord",
            name="settled_at",
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(fields=["settled_at", "id"], name="tenants_usage_settled"),
        ),
        migrations.AddIndex(
            model_name="usagerecord",
            index=models.Index(fields=["tenant_id", "settled_at", "id"], name="tenants_usage_tenant_settled"),
        ),
    ]
