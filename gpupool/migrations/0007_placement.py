from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0006_leases")]

    operations = [
        migrations.AddField(
            model_name="modelversion",
            name="mem_limit_mb",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
    ]
