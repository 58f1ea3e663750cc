import pytest
from django.db import connection

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


def test_a_server_that_is_gone_without_a_word_is_noticed_and_the_url_may_say_after_how_long() -> None:
    options = database_setting("postgres://h/n", statement_timeout_ms=1000)["OPTIONS"]
    idle, interval, count = (options[f"keepalives_{name}"] for name in ("idle", "interval", "count"))
    assert options["keepalives"] == 1
    assert idle + interval * count < 20  # nothing was on its way
    assert options["tcp_user_timeout"] == 10_000  # something was
    said = database_setting("postgres://h/n?tcp_user_timeout=3000&keepalives=0", statement_timeout_ms=1000)["OPTIONS"]
    assert (said["tcp_user_timeout"], said["keepalives"]) == ("3000", "0")


@pytest.mark.django_db
def test_the_driver_takes_the_options() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert connection.connection.info.get_parameters()["tcp_user_timeout"] == "10000"


@pytest.mark.parametrize("url", ["mysql://h/n", "postgresql://h", "postgresql://h/", "n"])
def test_other_urls_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(SettingsError, match=r"DATABASE_URL must look like") as caught:
        database_setting(url, statement_timeout_ms=1000)
    assert "mysql" not in str(caught.value)
