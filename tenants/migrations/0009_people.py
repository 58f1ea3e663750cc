import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import core.ids

SOURCES = [("manual", "By hand"), ("claims", "By claims")]
TENANT_ROLES = [
    ("owner", "Owner"),
    ("admin", "Admin"),
    ("developer", "Developer"),
    ("viewer", "Viewer"),
    ("billing", "Billing"),
]
PLATFORM_ROLES = [("", "None"), ("read_only", "Read-only"), ("operator", "Operator"), ("superuser", "Superuser")]


def key():
    return models.UUIDField(default=core.ids.uuid7, editable=False, primary_key=True, serialize=False)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0008_ledger_and_showback")]

    operations = [
        migrations.AddField(
            model_name="membership",
            name="source",
            field=models.CharField(choices=SOURCES, default="manual", max_length=8),
        ),
        migrations.AddField(
            model_name="user",
            name="platform_role_source",
            field=models.CharField(choices=SOURCES, default="manual", max_length=8),
        ),
        migrations.AddField(
            model_name="user",
            name="sessions_ended",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.CreateModel(
            name="LoginLink",
            fields=[
                ("id", key()),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={"abstract": False},
        ),
        migrations.CreateModel(
            name="Invitation",
            fields=[
                ("id", key()),
                ("email", models.EmailField(max_length=254)),
                ("role", models.CharField(choices=TENANT_ROLES, max_length=12)),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
                ("accepted_at", models.DateTimeField(null=True)),
                ("withdrawn_at", models.DateTimeField(null=True)),
                (
                    "accepted_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "invited_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="invitations", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["tenant", "-id"], name="tenants_inv_tenant__b77585_idx")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("accepted_at__isnull", True), ("withdrawn_at__isnull", True)),
                        fields=("tenant", "email"),
                        name="tenants_invitation_open_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RoleMapping",
            fields=[
                ("id", key()),
                ("claim", models.CharField(max_length=200)),
                ("value", models.CharField(max_length=200)),
                (
                    "platform_role",
                    models.CharField(blank=True, choices=PLATFORM_ROLES, default="", max_length=16),
                ),
                ("tenant_role", models.CharField(blank=True, choices=TENANT_ROLES, default="", max_length=12)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="role_mappings",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("claim", "value", "tenant"), name="tenants_rolemapping_once", nulls_distinct=False
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("tenant__isnull", True),
                                ("tenant_role", ""),
                                models.Q(("platform_role", ""), _negated=True),
                            ),
                            models.Q(
                                ("platform_role", ""),
                                ("tenant__isnull", False),
                                models.Q(("tenant_role", ""), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="tenants_rolemapping_one_role",
                    ),
                ],
            },
        ),
    ]
