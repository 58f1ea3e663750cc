from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0010_machine_identity")]

    operations = []
