"""Which store an installation uses."""

from dataclasses import replace

import pytest
from django.conf import settings

from gpupool.leases.default import open_store
from gpupool.leases.etcd import EtcdStore
from gpupool.leases.postgres import PostgresStore


@pytest.mark.shows("R122")
@pytest.mark.parametrize(("etcd_url", "kind"), [("", PostgresStore), ("http://127.0.0.1:1", EtcdStore)])
async def test_postgresql_is_the_store_unless_etcd_is_named(
    monkeypatch: pytest.MonkeyPatch, etcd_url: str, kind: type
) -> None:
    chosen = replace(settings.GATEHOUSE, etcd_url=etcd_url, database_url="postgresql://127.0.0.1:1/none")
    monkeypatch.setattr(settings, "GATEHOUSE", chosen)
    store = open_store()
    assert isinstance(store, kind)
    await store.close()
