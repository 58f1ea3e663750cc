from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0012_requests_for_more")]

    operations = []
