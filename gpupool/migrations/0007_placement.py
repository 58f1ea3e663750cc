from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0006_leases")]

    operations = []
