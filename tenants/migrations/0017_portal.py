"""What pages of the portal need."""

from django.db import migrations, models


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
    ]
