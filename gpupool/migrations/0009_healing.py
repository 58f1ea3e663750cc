from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0008_instances")]

    operations = []
