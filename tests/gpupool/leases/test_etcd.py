"""The contract on a real etcd, and what is its own: addresses, logins, TLS, its absence and return."""

import asyncio
import contextlib
import datetime
import ipaddress
import itertools
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import grpc.aio
import pytest
from aetcd import rpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpupool.leases.base import Committed, Compacted, Delete, Event, LeaseNotFound, LeaseStore, Put, StoreUnavailable
from gpupool.leases.etcd import EtcdStore
from gpupool.leases.etcd_address import parse_etcd_url
from tests.gpupool.leases.contract import (
    PATIENCE_SECONDS,
    LeaseStoreContract,
    eventually,
    least_until_refused,
    put,
    take,
)
from tests.gpupool.leases.etcd_server import EtcdServer, an_etcd, needs_etcd
from tests.gpupool.processes import free_port

pytestmark = needs_etcd
_TEST: Final = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with an_etcd() as started:
        yield started


@pytest.fixture
async def store(server: EtcdServer) -> AsyncIterator[LeaseStore]:
    opened = EtcdStore(parse_etcd_url(f"{server.url}/test-{next(_TEST)}"), deadline_seconds=PATIENCE_SECONDS)
    yield opened
    await opened.close()


class TestEtcdStore(LeaseStoreContract):
    pass


async def test_two_installations_on_one_etcd_do_not_see_each_other(server: EtcdServer) -> None:
    here, there = (
        EtcdStore(parse_etcd_url(f"{server.url}/{name}"), deadline_seconds=PATIENCE_SECONDS)
        for name in ("here", "there")
    )
    try:
        await put(here, "/gpu/a", b"1")
        assert await there.get("/gpu/a") is None
        assert (await there.range("/")).entries == ()
        assert [entry.key for entry in (await here.range("/")).entries] == ["/gpu/a"]
    finally:
        await here.close()
        await there.close()


async def test_a_deletion_at_the_very_revision_of_a_compaction_is_not_lost(store: LeaseStore) -> None:
    """etcd replays a watch from the revision that it was compacted at, less the deletions of that one."""
    first = await put(store, "/w/a", b"1")
    gone = await store.transact([], [Delete("/w/a")])
    await store.compact(gone.revision)
    with pytest.raises(Compacted):
        await take(store.watch("/w/", after_revision=first), 1)


async def test_a_store_that_is_away_says_so_within_its_deadline() -> None:
    loop, took = asyncio.get_running_loop(), list[float]()
    while len(took) < 3 and min(took, default=5.0) >= 5.0:  # this process may stand still just then
        store = EtcdStore(parse_etcd_url(f"http://127.0.0.1:{free_port()}"), deadline_seconds=0.5)
        begun = loop.time()
        try:
            for call in (store.get("/a"), store.range("/"), store.grant(5), store.keep_alive(1), store.revoke(1)):
                with pytest.raises(StoreUnavailable):
                    await call
            with pytest.raises(StoreUnavailable):
                await take(store.watch("/", after_revision=0), 1)
            took.append(loop.time() - begun)
        finally:
            await store.close()
    assert min(took) < 5.0


async def test_a_frozen_server_costs_one_deadline_and_ends_a_watch() -> None:
    with an_etcd() as server:
        store = EtcdStore(parse_etcd_url(server.url), deadline_seconds=0.5)
        async with _patient(server) as patient:
            revision = await put(patient, "/w/a", b"1")
        await eventually(lambda: _answers(store))
        watching = asyncio.create_task(take(store.watch("/w/", after_revision=revision), 1))
        await asyncio.sleep(0)
        process = server.process
        assert process is not None

        async def freeze() -> None:
            process.send_signal(signal.SIGCONT)
            await eventually(lambda: _answers(store))
            process.send_signal(signal.SIGSTOP)

        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable):
                await watching
            for call in (lambda: store.get("/a"), lambda: store.keep_alive(1)):
                assert await least_until_refused(call, lose=freeze, enough=1.5) < 1.5
        finally:
            process.send_signal(signal.SIGCONT)
        await eventually(lambda: _answers(store))
        await store.close()


async def test_a_killed_server_keeps_everything_and_is_found_soon_after_its_return() -> None:
    with an_etcd() as server:
        store, loop = EtcdStore(parse_etcd_url(server.url), deadline_seconds=0.5), asyncio.get_running_loop()
        async with _patient(server) as patient:
            grant = await patient.grant(600)
            revision = await put(patient, "/w/a", b"1", grant.lease_id)
        await eventually(lambda: _answers(store))
        took: list[float] = []
        while len(took) < 3 and min(took, default=5.0) >= 5.0:  # this process or the server may stand still just then
            server.kill()
            with pytest.raises(StoreUnavailable):
                await store.get("/w/a")
            server.start()
            back_at = loop.time()
            await eventually(lambda: _answers(store))
            took.append(loop.time() - back_at)
        assert min(took) < 5.0

        async def has_everything() -> bool:
            with contextlib.suppress(StoreUnavailable):
                entry = await store.get("/w/a")
                assert entry is not None
                assert (entry.value, entry.mod_revision) == (b"1", revision)
                await store.keep_alive(grant.lease_id)
                later = await put(store, "/w/b", b"2")
                # All since before its death: it may have taken more than this one without being heard in time.
                events = await take(store.watch("/w/", after_revision=revision), later - revision)
                assert events[-1] == Event(later, "/w/b", b"2")
                return True
            return False

        await eventually(has_everything)
        await store.close()


@asynccontextmanager
async def _patient(server: EtcdServer) -> AsyncIterator[EtcdStore]:
    """A store that waits for a server which stands still."""
    opened = EtcdStore(parse_etcd_url(server.url), deadline_seconds=PATIENCE_SECONDS)
    try:
        yield opened
    finally:
        await opened.close()


async def _answers(store: LeaseStore) -> bool:
    with contextlib.suppress(StoreUnavailable):
        await store.get("/a")
        return True
    return False


async def test_another_member_is_asked_when_one_does_not_answer(server: EtcdServer) -> None:
    away, there = f"127.0.0.1:{free_port()}", server.url.removeprefix("http://")
    store = EtcdStore(parse_etcd_url(f"http://{away},{there}/members"), deadline_seconds=0.5)

    async def written() -> bool:
        with contextlib.suppress(StoreUnavailable):
            return isinstance(await store.transact([], [Put("/a", b"1")]), Committed)
        return False

    await eventually(written)
    await store.close()


async def test_a_user_logs_in_again_once_the_server_has_forgotten_the_login() -> None:
    with an_etcd() as server:
        await _ask_for_logins(server, "s3cret/@")
        url = server.url.replace("://", "://root:s3cret%2F%40@")
        store = EtcdStore(parse_etcd_url(url), deadline_seconds=10.0)
        revision = await put(store, "/a", b"1")
        server.kill()
        server.start()  # which forgets who has logged in
        await eventually(lambda: _answers(store))
        assert await take(store.watch("/", after_revision=revision - 1), 1) == [Event(revision, "/a", b"1")]
        with pytest.raises(LeaseNotFound):
            await store.keep_alive(1)
        stranger = EtcdStore(parse_etcd_url(server.url), deadline_seconds=PATIENCE_SECONDS)
        with pytest.raises(StoreUnavailable, match="user name is empty"):
            await stranger.get("/a")
        await stranger.close()
        await store.close()


async def _ask_for_logins(server: EtcdServer, password: str) -> None:
    async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
        stub = rpc.AuthStub(channel)
        await stub.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
        await stub.UserAdd(rpc.AuthUserAddRequest(name="root", password=password))
        await stub.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        await stub.AuthEnable(rpc.AuthEnableRequest())


async def test_tls_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    certificate, key = _self_signed(tmp_path)
    arguments = (f"--cert-file={certificate}", f"--key-file={key}", f"--trusted-ca-file={certificate}")
    with an_etcd(*arguments, "--client-cert-auth") as server:
        address = parse_etcd_url(server.url, ca_file=certificate, certificate_file=certificate, key_file=key)
        known = EtcdStore(address, deadline_seconds=PATIENCE_SECONDS)
        await eventually(lambda: _answers(known))
        await put(known, "/a", b"1")
        unknown = EtcdStore(parse_etcd_url(server.url, ca_file=certificate), deadline_seconds=0.5)
        with pytest.raises(StoreUnavailable):
            await unknown.get("/a")
        await unknown.close()
        await known.close()


def _self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "etcd")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "cert.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file
