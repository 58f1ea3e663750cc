from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0007_placement")]

    operations = []
