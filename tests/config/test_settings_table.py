import ast
import dataclasses
from pathlib import Path

from django.core.management import call_command

import config
from config.environment import Environment
from config.management.commands.settings_table import settings_table


def test_table_has_every_setting_once() -> None:
    page = settings_table()
    for field in dataclasses.fields(Environment):
        assert page.count(f"| `{field.metadata['variable']}` |") == 1


def test_page_in_docs_is_up_to_date() -> None:
    call_command("settings_table", "--check")


def test_what_each_setting_means_is_marked_for_translation() -> None:
    found = [
        call.args[1]
        for path in Path(config.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "setting"
    ]
    assert len(found) == len(dataclasses.fields(Environment))
    for text in found:
        assert isinstance(text, ast.Call), ast.unparse(text)
        assert ast.unparse(text.func) == "_"
