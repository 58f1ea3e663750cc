"""Objectives, their alerts and silences."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("gateway", "0003_stored_conversation")]

    operations: list[object] = []
