"""The command of a simulated fleet: it refuses with sentences, ends no other fleet, and takes everything away again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from config.management.commands import simulate_fleet
from gpupool import services
from gpupool.agent.state import AgentAlreadyRuns
from gpupool.models import Device, DeviceEvent, Instance, Lease, Node
from gpupool.simulation.fleet import sole_fleet
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tenants.services import InvalidInput
from tests.gpupool.pool import GIB, a_device, a_version, an_online_node, place_one


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nodes": 0}, "1 to 500 nodes"),
        ({"xid_rate": -3.0}, "--xid-rate is 0 to 3600, not -3."),
        ({"loss_rate": float("nan")}, "--loss-rate is 0 to 3600, not nan."),
        ({"outage_seconds": -1.0}, "--outage-seconds is"),
        ({"speed": 0.0}, "--speed is 0.01 to 1000"),
        ({"traffic": 5.0}, "--traffic is 0 to 1"),
        ({"port_first": 5}, "--port-first is 1024 to 65535, not 5."),
        ({"port_first": 65_400}, "8 nodes need 64 ports each, from 65400"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_before_anything_is_written(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(CommandError, match=words):
        call_command("simulate_fleet", **options)


def test_a_database_that_is_away_is_told_in_a_sentence() -> None:
    def away() -> None:
        raise OperationalError("connection refused\nis it running?")

    with pytest.raises(CommandError, match=r"The database cannot be used: connection refused\. DATABASE_URL must be"):
        simulate_fleet.with_database(away)


def test_two_fleets_of_a_kind_on_one_machine_are_refused_and_two_kinds_are_not(tmp_path: Path) -> None:
    with (
        sole_fleet(tmp_path, "h100"),
        sole_fleet(tmp_path, "l4"),
        pytest.raises(AgentAlreadyRuns, match="A simulated fleet of h100 runs already"),
        sole_fleet(tmp_path, "h100"),
    ):
        pass
    with sole_fleet(tmp_path, "h100"):
        pass


@pytest.mark.django_db
def test_a_second_fleet_of_a_kind_leaves_the_tokens_of_the_first(tmp_path: Path, settings: Any) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, var_dir=tmp_path)
    before = simulate_fleet.node_tokens(["sim-h100-01"])["sim-h100-01"]
    with sole_fleet(tmp_path / "simulated", "h100"), pytest.raises(CommandError, match="runs already"):
        call_command("simulate_fleet", nodes=1)
    assert services.authenticate_node(before) is not None


@pytest.mark.django_db
def test_its_nodes_are_marked_before_they_connect_and_no_real_one_is_taken() -> None:
    simulate_fleet.node_tokens(["sim-l4-01"])
    assert Node.objects.get(name="sim-l4-01").simulated
    services.create_node("sim-l4-02", actor=SYSTEM)
    with pytest.raises(CommandError, match="There is a real node sim-l4-02"):
        simulate_fleet.node_tokens(["sim-l4-01", "sim-l4-02"])


@pytest.mark.django_db
def test_removal_takes_what_is_made_up_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    real, made_up = an_online_node(a_device("GPU-real"), name="real"), an_online_node(a_device("GPU-1"), name="sim-1")
    Node.objects.filter(pk=made_up.pk).update(simulated=True)
    kept = place_one(a_version("qwen", memory_bytes=GIB), real)
    version = a_version("llama", memory_bytes=GIB, artefact="file:///simulated/llama", replicas=1)
    place_one(version, made_up)
    place_one(version, made_up)
    services.stop_instance(place_one(version, made_up).pk, actor=SYSTEM, reason="done")
    call_command("simulate_fleet", remove=True)
    said = capsys.readouterr().out
    assert "Removed 1 simulated nodes with 1 devices and 3 instances." in said
    assert "llama v1. Retire them" in said
    assert [node.name for node in Node.objects.all()] == ["real"]
    assert [device.stable_id for device in Device.objects.all()] == ["GPU-real"]
    assert [lease.holder for lease in Lease.objects.all()] == [f"instance:{kept.pk}"]
    assert [instance.pk for instance in Instance.objects.all()] == [kept.pk]
    assert not DeviceEvent.objects.exists()
    assert AuditEvent.objects.filter(action="node.simulated_removed").count() == 1
    assert services.authenticate_node(made_up.token) is None
    call_command("simulate_fleet", remove=True)
    assert "Removed 0 simulated nodes" in capsys.readouterr().out


@pytest.mark.django_db
def test_a_real_node_is_never_removed() -> None:
    real = an_online_node(a_device("GPU-real"), name="real")
    with pytest.raises(InvalidInput, match="Node real is real"):
        services.remove_simulated_node(real.pk, actor=SYSTEM)
