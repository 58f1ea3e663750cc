from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0011_notices")]

    operations = []
