import core.ids
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0009_people")]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="compromised_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="apikey",
            name="known_good_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="apikey",
            name="lineage",
            field=models.UUIDField(blank=True, db_index=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="apikey",
            name="replaced_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="replaces",
                to="tenants.apikey",
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="store_conversations",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.CreateModel(
            name="TokenIssuer",
            fields=[
                ("id", models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=80)),
                ("issuer", models.CharField(max_length=500, unique=True)),
                ("audiences", models.JSONField(default=list)),
                ("algorithms", models.JSONField(default=list)),
                ("jwks_url", models.CharField(blank=True, max_length=2000)),
                ("pinned_jwks", models.TextField(blank=True)),
                ("allow_private", models.BooleanField(default=False)),
                ("leeway_seconds", models.FloatField(default=30.0)),
                ("tenant_claim", models.CharField(default="tid", max_length=200)),
                ("scope_claim", models.CharField(default="scope", max_length=200)),
                ("role_claim", models.CharField(default="roles", max_length=200)),
                ("role_scopes", models.JSONField(blank=True, default=dict)),
                ("default_scopes", models.JSONField(blank=True, default=list)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="issuers",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("leeway_seconds__gte", 0), ("leeway_seconds__lte", 300)),
                        name="tenants_issuer_leeway",
                    )
                ],
            },
        ),
        migrations.RemoveConstraint(model_name="grant", name="tenants_grant_once"),
        migrations.AddConstraint(
            model_name="grant",
            constraint=models.UniqueConstraint(
                fields=("tenant", "principal_kind", "principal_id", "model_pattern", "effect"),
                name="tenants_grant_once",
            ),
        ),
    ]
