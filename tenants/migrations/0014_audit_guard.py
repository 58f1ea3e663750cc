from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0013_conversations_and_erasure")]

    operations = []
