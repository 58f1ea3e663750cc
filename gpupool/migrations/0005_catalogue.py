from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("gpupool", "0004_the_pool")]

    operations = []
