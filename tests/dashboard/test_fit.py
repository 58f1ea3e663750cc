"""The page “Will it fit?”: the question in its address, the estimate in parts, each device's reason."""

from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpupool import services
from gpupool.models import Device, Lease, ModelVersion
from tenants.actor import SYSTEM
from tests.dashboard.people import person
from tests.gpupool.gguf_headers import LLAMA_3_8B, Q4_0, write_model
from tests.gpupool.pool import GIB, a_device, a_version, an_online_node

pytestmark = pytest.mark.django_db
PAGE = "/console/fit/"


@pytest.fixture
def reader(client: Client) -> Client:
    client.force_login(person("rita", platform_role="read_only"))
    return client


@pytest.fixture
def version(tmp_path: Path) -> ModelVersion:
    return a_version("llama", memory_bytes=0, artefact=f"file://{write_model(tmp_path / 'm.gguf', LLAMA_3_8B, Q4_0)}")


def test_without_a_version_there_is_nothing_to_ask(reader: Client) -> None:
    text = reader.get(PAGE).content.decode()
    assert "No version to ask about" in text
    assert '<form class="body"' not in text


def test_the_question_stands_in_the_address(reader: Client, version: ModelVersion) -> None:
    an_online_node(a_device("gpu-0"), a_device("gpu-1", memory_bytes=2 * GIB))
    asked = {"version": str(version.pk), "context_tokens": "8192", "flash_attention": "off"}
    response = reader.get(PAGE, asked)
    assert response.status_code == 200
    text = response.content.decode()
    assert "It fits" in text
    assert "It would go to node-1/gpu-0." in text
    for part in ("Weights", "KV cache", "Compute buffers", "Overhead", "Together"):
        assert part in text
    assert "It needs 5.8 GiB, 2.0 GiB can be claimed" in text
    assert 'value="8192"' in text
    assert not Lease.objects.exists()


def test_columns_are_of_devices_that_hold_the_same(reader: Client, version: ModelVersion) -> None:
    an_online_node(*(a_device(f"gpu-{number}") for number in range(4)))
    response = reader.get(PAGE, {"version": str(version.pk), "devices": "4"})
    columns = response.context["breakdown"].columns
    assert columns == ("Device 1", "Devices 2 to 3, each", "Device 4", "Host memory")
    assert sum(response.context["breakdown"].layers[:1]) + 2 * response.context["breakdown"].layers[1] == 25


def test_what_cannot_be_estimated_says_why(reader: Client) -> None:
    an_online_node(a_device("gpu-0"))
    version = a_version("m", artefact="file:///nowhere/m.gguf")
    text = reader.get(PAGE, {"version": str(version.pk)}).content.decode()
    assert "It cannot be estimated here: there is no file /nowhere/m.gguf" in text
    assert "It fits" in text  # by what it claims


def test_a_wrong_value_is_said_at_its_field(reader: Client, version: ModelVersion) -> None:
    response = reader.get(PAGE, {"version": str(version.pk), "devices": "0"})
    assert response.status_code == 422
    assert "greater than or equal to 1" in response.content.decode()
    assert reader.get(PAGE, {"version": "nothing"}).status_code == 422


def test_a_tag_brings_its_limit(reader: Client, version: ModelVersion) -> None:
    an_online_node(a_device("gpu-0", memory_bytes=80 * GIB))
    Device.objects.update(tags=["A100-80GB"])
    response = reader.get(PAGE, {"version": str(version.pk), "gpu_tag": "H100"})
    assert response.context["answer"].verdict == "does_not_fit"
    assert "It does not have the tag H100; it has A100-80GB" in response.content.decode()


def test_retired_versions_and_those_that_are_only_attached_are_not_offered(
    reader: Client, version: ModelVersion
) -> None:
    attached = a_version("other", artefact="", memory_bytes=0)
    services.retire_version(version.pk, actor=SYSTEM)
    text = reader.get(PAGE).content.decode()
    assert str(attached.pk) not in text
    assert str(version.pk) not in text


def test_it_is_for_platform_roles(client: Client) -> None:
    client.force_login(person("nobody"))
    assert client.get(PAGE).status_code == 403


def test_it_is_in_the_navigation(reader: Client) -> None:
    assert f'href="{PAGE}"' in reader.get("/console/overview/").content.decode()


def test_what_versions_were_admitted_by_is_not_read_to_name_them(reader: Client, version: ModelVersion) -> None:
    with CaptureQueriesContext(connection) as asked:
        assert str(version.pk) in reader.get(PAGE).content.decode()
    statements = [query["sql"] for query in asked.captured_queries]
    assert not any(column in sql for sql in statements for column in ('"manifest"', '"card"', '"checks"'))
