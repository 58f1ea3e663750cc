from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0012_requests_for_more")]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="conversation_retention_days",
            field=models.PositiveSmallIntegerField(db_default=30, default=30),
        ),
        migrations.AddField(
            model_name="tenant",
            name="erasing_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
    ]
