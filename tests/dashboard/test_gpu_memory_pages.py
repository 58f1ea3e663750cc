"""Pages of GPU memory: who may open them, what they tell their script, and the processes under the wall."""

import json
import re
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from gpupool.models import Device, Node
from tenants.models import TenantRole, User
from tests.dashboard.people import person, pool, tenant

pytestmark = pytest.mark.django_db

CONSOLE = "/console/gpu-memory/"


def signed_in_as(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def person_of(name: str) -> User:
    return User.objects.get(email=f"{name}@example.com")


@pytest.fixture
def reader() -> Client:
    return signed_in_as(person("rita", platform_role="read_only"))


def test_whoever_reads_the_platform_sees_the_whole_pool(reader: Client) -> None:
    page = reader.get(CONSOLE)
    assert page.status_code == 200
    text = page.content.decode()
    assert 'data-scope="cluster"' in text
    assert f'data-frame="{CONSOLE}frame/"' in text
    assert f'data-history="{CONSOLE}history/"' in text
    assert 'aria-current="page"' in re.search(r'href="/console/gpu-memory/"[^>]*>', text)[0]  # type: ignore[index]


def test_the_script_gets_its_words_in_the_readers_language(reader: Client) -> None:
    text = reader.get(CONSOLE).content.decode()
    words = json.loads(re.search(r'<script id="flame-strings"[^>]*>(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert words["segments"]["kv_used"] == "KV cache"
    assert words["zone"] == "UTC"


def test_members_see_their_tenant_and_no_processes() -> None:
    tenant("acme", ada=TenantRole.VIEWER)
    page = signed_in_as(person_of("ada")).get("/t/acme/gpu-memory/")
    text = page.content.decode()
    assert 'data-scope="tenant:acme"' in text
    assert 'data-frame="/t/acme/gpu-memory/frame/"' in text
    assert "data-processes" not in text
    assert "Asia/Shanghai" in text


def test_strangers_see_nothing() -> None:
    tenant("acme", ada=TenantRole.OWNER)
    tenant("bank", bob=TenantRole.OWNER)
    bob = signed_in_as(person_of("bob"))
    node = pool().device.node
    assert bob.get("/t/acme/gpu-memory/").status_code == 404
    assert bob.get(CONSOLE).status_code == 403
    assert bob.get(f"{CONSOLE}processes/{node.pk}/").status_code == 403
    assert Client().get(CONSOLE).status_code == 302


def test_a_tenant_cannot_tell_a_device_of_others_from_none() -> None:
    tenant("acme", ada=TenantRole.VIEWER)
    ada = signed_in_as(person_of("ada"))
    real, made_up = pool().device.pk, uuid4()
    told = [ada.get(f"/t/acme/gpu-memory/history/?device={device}").json() for device in (real, made_up)]
    assert [one.pop("device") for one in told] == [str(real), str(made_up)]
    assert told[0] == told[1]
    assert told[0]["series"] == {}


@pytest.mark.shows("R153")
def test_processes_of_a_node_stand_under_the_wall(reader: Client, django_assert_max_num_queries: Any) -> None:
    made = pool()
    Device.objects.filter(pk=made.device.pk).update(
        processes=[
            {"pid": 4711, "name": "python", "memory_bytes": 20 << 30, "instance_id": str(made.instance.pk)},
            {"pid": 99, "name": "Xorg", "memory_bytes": 1 << 30},
        ]
    )
    type(made.instance).objects.filter(pk=made.instance.pk).update(device_peak_bytes=22 << 30, guard_state="watched")
    with django_assert_max_num_queries(9):
        text = reader.get(f"{CONSOLE}processes/{made.device.node_id}/").content.decode()
    assert "<html" not in text
    row = re.sub(r"(<[^>]+>|\s)+", " ", text[text.index("<tbody") :])
    assert re.search(r"qwen3-8b 4711 GPU 0 GPU-1 20\.0 GiB 22\.0 GiB 24\.0 GiB 83\.3 % Watched", row), row
    assert re.search(r"Xorg 99 GPU 0 GPU-1 1\.0 GiB unknown – – not of the pool", row), row
    assert f'href="/console/instances/{made.instance.pk}/"' in text


def test_processes_of_no_node(reader: Client) -> None:
    assert reader.get(f"{CONSOLE}processes/{uuid4()}/").status_code == 404
    empty = Node.objects.create(name="bare", state="online", token_digest="e" * 64, token_last_four="eeee")
    assert "No process is listed" in reader.get(f"{CONSOLE}processes/{empty.pk}/").content.decode()
