"""Answers to POSTs that may be sent again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("core", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="IdempotencyRecord",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("person_id", models.UUIDField()),
                ("key_digest", models.BinaryField(max_length=32)),
                ("target", models.CharField(max_length=500)),
                ("request_digest", models.BinaryField(max_length=32)),
                ("status", models.PositiveSmallIntegerField()),
                ("body", models.JSONField(null=True)),
                ("headers", models.JSONField(default=dict)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="core_idempo_created_c8a89f_idx")],
                "constraints": [models.UniqueConstraint(fields=("person_id", "key_digest"), name="core_idempotency_key")],
            },
        ),
    ]
