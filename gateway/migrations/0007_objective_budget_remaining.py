"""What is left of an objective's budget, as the last look found it: lists of hundreds are sorted by it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gateway", "0006_objective_count_failed_at")]

    operations = [
        migrations.AddField(
            model_name="objective",
            name="budget_remaining",
            field=models.FloatField(blank=True, editable=False, null=True),
        ),
    ]
