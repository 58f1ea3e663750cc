from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0008_ledger_and_showback")]

    operations = []
