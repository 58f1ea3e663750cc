import dataclasses

from django.core.management import call_command

from config.environment import Environment
from config.management.commands.settings_table import settings_table


def test_table_has_every_setting_once() -> None:
    page = settings_table()
    for field in dataclasses.fields(Environment):
        assert page.count(f"| `{field.metadata['variable']}` |") == 1


def test_page_in_docs_is_up_to_date() -> None:
    call_command("settings_table", "--check")
