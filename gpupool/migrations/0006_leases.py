from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0005_catalogue")]

    operations = [
        migrations.CreateModel(
            name="FencingBase",
            fields=[
                ("singleton", models.BooleanField(default=True, primary_key=True, serialize=False)),
                ("store_id", models.CharField(max_length=64)),
                ("base", models.BigIntegerField()),
                ("newest_revision", models.BigIntegerField()),
            ],
        ),
    ]
