from django.db import migrations, models

import core.ids


class Migration(migrations.Migration):
    dependencies = [("gateway", "0002_reconciliation")]

    operations = [
        migrations.CreateModel(
            name="StoredConversation",
            fields=[
                (
                    "id",
                    models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False),
                ),
                ("tenant_id", models.UUIDField()),
                ("key_id", models.UUIDField()),
                ("model", models.CharField(max_length=200)),
                ("api", models.CharField(max_length=16)),
                ("streamed", models.BooleanField()),
                ("outcome", models.CharField(max_length=12)),
                ("messages", models.TextField()),
                ("answer", models.TextField()),
                ("truncated", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(fields=["tenant_id", "-id"], name="gateway_conversation_tenant"),
                    models.Index(fields=["expires_at"], name="gateway_conversation_expiry"),
                ],
            },
        ),
    ]
