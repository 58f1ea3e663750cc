"""`manage.py controller`: what is missing is said in a sentence."""

import os
import subprocess
import sys

import pytest

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
    server = os.environ["DATABASE_URL"].rpartition("/")[0]
    ended = subprocess.run(
        [sys.executable, "manage.py", "controller"],
        cwd=ROOT,
        env=os.environ
        | {"DATABASE_URL": f"{server}/{database}" if database else "", "LEASE_DATABASE_URL": "", "ETCD_URL": etcd},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
