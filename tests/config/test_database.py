import pytest

from config.database import database_setting
from core.env import SettingsError


def test_no_url_is_no_database() -> None:
    assert database_setting(None, statement_timeout_ms=1000) == {"ENGINE": "django.db.backends.dummy"}


def test_url_parts_are_unquoted() -> None:
    setting = database_setting("postgresql://us%40er:p%2Fw@db.example.test:5433/na%20me", statement_timeout_ms=1000)
    assert setting["USER"] == "us@er"
    assert setting["PASSWORD"] == "p/w"
    assert setting["HOST"] == "db.example.test"
    assert setting["PORT"] == "5433"
    assert setting["NAME"] == "na me"


def test_query_becomes_options_and_timeouts_are_set() -> None:
    options = database_setting("postgres://h/n?sslmode=require", statement_timeout_ms=2500)["OPTIONS"]
    assert options["sslmode"] == "require"
    assert "statement_timeout=2500" in options["options"]
    assert "lock_timeout=2500" in options["options"]


@pytest.mark.parametrize("url", ["mysql://h/n", "postgresql://h", "postgresql://h/", "n"])
def test_other_urls_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(SettingsError, match=r"DATABASE_URL must look like") as caught:
        database_setting(url, statement_timeout_ms=1000)
    assert "mysql" not in str(caught.value)
