from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0008_instances")]

    operations = [
        migrations.AddField(
            "device",
            "isolated_boot_id",
            models.CharField(blank=True, default="", max_length=64),
            preserve_default=False,
        ),
        migrations.AddField(
            "device", "isolated_by", models.CharField(blank=True, default="", max_length=8), preserve_default=False
        ),
        migrations.AddField(
            "deviceevent", "verdict", models.CharField(blank=True, default="", max_length=1000), preserve_default=False
        ),
        migrations.AddField("healingaction", "data", models.JSONField(blank=True, default=dict)),
        migrations.AddField("instance", "guard_cap", models.PositiveIntegerField(blank=True, null=True)),
    ]
