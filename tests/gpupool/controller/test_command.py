"""`manage.py controller`: what is missing is said in a sentence."""

import os
import subprocess
import sys

import pytest

from tests.gpupool.leases.etcd_server import an_etcd, needs_etcd
from tests.gpupool.processes import ROOT


@pytest.mark.parametrize(
    ("database", "etcd", "words"),
    [
        ("", "", "DATABASE_URL is not set"),
        ("postgres", "", "run `make up`, or `manage.py migrate` first"),
        ("postgres", "etcd:2379", "ETCD_URL must begin with http:// or https://"),
    ],
)
def test_a_missing_database_one_without_tables_or_a_wrong_store_is_told(database: str, etcd: str, words: str) -> None:
    ended = _controller(database, etcd)
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@needs_etcd
def test_a_database_without_tables_is_told_beside_an_etcd_too() -> None:
    """The leadership is won there: the database is asked only afterwards."""
    with an_etcd() as etcd:
        ended = _controller("postgres", etcd.url)
    assert ended.returncode == 1
    assert "run `make up`, or `manage.py migrate` first" in ended.stderr
    assert "Traceback" not in ended.stderr


def _controller(database: str, etcd: str) -> "subprocess.CompletedProcess[str]":
    server = os.environ["DATABASE_URL"].rpartition("/")[0]
    return subprocess.run(
        [sys.executable, "manage.py", "controller"],
        cwd=ROOT,
        env=os.environ
        | {"DATABASE_URL": f"{server}/{database}" if database else "", "LEASE_DATABASE_URL": "", "ETCD_URL": etcd},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
