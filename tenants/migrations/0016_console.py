"""What pages of the console need: the audit log by who acts, whoever it is; keys by their names."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0015_latency")]

    operations = [
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(fields=["actor_kind", "-id"], name="tenants_audit_actor_kind"),
        ),
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(fields=["name", "id"], name="tenants_apikey_of_all_by_name"),
        ),
    ]
