from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0007_limits_and_prices")]

    operations = []
