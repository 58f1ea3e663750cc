"""When counting an objective's window took too long last, so that others have their turn before it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gateway", "0005_objective_names")]

    operations = [
        migrations.AddField(
            model_name="objective",
            name="count_failed_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
    ]
