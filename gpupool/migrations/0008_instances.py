from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0007_placement")]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="started_from",
            field=models.CharField(blank=True, max_length=8, default=""),
            preserve_default=False,
        ),
        migrations.AddField(model_name="instance", name="pooled", field=models.BooleanField(default=False)),
        migrations.AddField(
            model_name="instance", name="lost_serving", field=models.BooleanField(default=False, editable=False)
        ),
        migrations.AddField(model_name="instance", name="acquisitions", field=models.PositiveIntegerField(default=0)),
        migrations.AddField(model_name="instance", name="reuses", field=models.PositiveIntegerField(default=0)),
        migrations.AddField(
            model_name="modelversion", name="idle_sleep_seconds", field=models.FloatField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="modelversion", name="device_seconds", field=models.FloatField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="modelversion",
            name="rolled_back_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="modelversion",
            name="state_reason",
            field=models.TextField(blank=True, default=""),
            preserve_default=False,
        ),
    ]
