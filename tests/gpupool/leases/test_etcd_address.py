"""Where an etcd is: what the setting can say, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from core.env import SettingsError
from gpupool.leases.etcd_address import EtcdAddress, parse_etcd_url


def test_an_address_is_read_with_everything_it_can_say() -> None:
    assert parse_etcd_url("http://etcd") == EtcdAddress(("etcd:2379",))
    assert parse_etcd_url("https://me:p%40ss@a:1,b,[::1]:3/site/one/") == EtcdAddress(
        ("a:1", "b:2379", "[::1]:3"), secure=True, prefix="/site/one", username="me", password="p@ss"
    )
    assert "p@ss" not in repr(parse_etcd_url("https://me:p%40ss@a"))


@pytest.mark.parametrize(
    "url", ["", "etcd:2379", "ftp://etcd", "http://", "http://me@etcd", "http://:secretive@etcd", "http://etcd:port"]
)
def test_an_address_that_cannot_be_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match="ETCD_URL") as refused:
        parse_etcd_url(url)
    assert "secretive" not in str(refused.value)


def test_files_are_read_at_once_and_belong_to_https(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="ETCD_CA_FILE"):
        parse_etcd_url("https://etcd", ca_file=tmp_path / "none")
    with pytest.raises(SettingsError, match="https"):
        parse_etcd_url("http://etcd", ca_file=tmp_path)
    with pytest.raises(SettingsError, match="together"):
        parse_etcd_url("https://etcd", certificate_file=tmp_path)


def test_an_installation_without_etcd_does_not_load_it() -> None:
    code = (
        "import os, sys; os.environ['DJANGO_SETTINGS_MODULE'] = 'config.settings'; import django; django.setup(); "
        "import gpupool.leases.default, gpupool.controller.loop; "
        "assert not {'grpc', 'aetcd', 'google.protobuf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
