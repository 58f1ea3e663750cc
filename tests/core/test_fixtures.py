"""The fixtures that other tests stand on."""

import psycopg
import redis
from django.conf import settings
from django.db import connection


def test_database_is_the_workers_own(embedded_postgres_url: str, transactional_db: None) -> None:
    with psycopg.connect(embedded_postgres_url) as direct, connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        assert direct.execute("SELECT current_database()").fetchone() == cursor.fetchone()
    assert settings.GATEHOUSE.database_url == embedded_postgres_url


def test_valkey_is_empty(valkey_url: str) -> None:
    with redis.Redis.from_url(valkey_url) as client:
        assert client.dbsize() == 0
        client.set("a", 1)


def test_valkey_is_empty_again(valkey_url: str) -> None:
    with redis.Redis.from_url(valkey_url) as client:
        assert client.dbsize() == 0
