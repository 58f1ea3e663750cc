"""Makes small pools for tests, through the services alone."""

from dataclasses import dataclass
from uuid import UUID

from gpupool import services
from gpupool.models import Device, Instance, Lease, Model, ModelVersion, Node
from gpupool.stream.messages import PROTOCOL, DeviceFact, Hello, InstanceFact, Observed
from tenants.actor import SYSTEM

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class OnlineNode:
    """A node whose stream is open."""

    pk: UUID
    name: str
    token: str
    session: UUID


def a_device(
    stable_id: str, *, memory_bytes: int | None = 16 * GIB, kind: str = "gpu", health: str = "ok"
) -> DeviceFact:
    return DeviceFact(
        stable_id=stable_id,
        kind=kind,
        vendor="host" if kind == "cpu" else "nvidia",
        name="Test device",
        index=0,
        memory_bytes=memory_bytes,
        memory_used_bytes=None,
        utilization=None,
        health=health,
    )


def a_hello(name: str, *devices: DeviceFact, boot_id: str = "first", instances: tuple[InstanceFact, ...] = ()) -> Hello:
    return Hello(
        protocol=PROTOCOL,
        node=name,
        boot_id=boot_id,
        agent_version="test",
        address="127.0.0.1",
        facts={"os": "test"},
        devices=list(devices),
        instances=list(instances),
    )


def an_online_node(*devices: DeviceFact, name: str = "node-1") -> OnlineNode:
    new = services.create_node(name, actor=SYSTEM)
    intake = services.apply_hello(new.node.pk, a_hello(name, *devices))
    return OnlineNode(new.node.pk, name, new.token, intake.session_id)


def a_version(
    name: str, *, memory_bytes: int = GIB, replicas: int = 0, device_kind: str = "gpu", artefact: str = "file:///m.gguf"
) -> ModelVersion:
    model = Model.objects.filter(name=name).first() or services.create_model(name, actor=SYSTEM)
    return services.create_version(
        model,
        name=f"v{model.versions.count() + 1}",
        engine="llamacpp",
        artefact_uri=artefact,
        memory_bytes=memory_bytes,
        replicas=replicas,
        device_kind=device_kind,
        actor=SYSTEM,
    )


def place_one(version: ModelVersion, node: OnlineNode | Node) -> Instance:
    """One instance of `version` on the node's first device."""
    instance = services.request_instance(version.pk, actor=SYSTEM)
    device = Device.objects.filter(node=node.pk).order_by("stable_id")[0]
    assert isinstance(services.claim_and_place(instance.pk, device.pk, actor=SYSTEM), Lease)
    instance.refresh_from_db()
    return instance


def seen(
    instance: Instance, state: str, *, pid: int | None = None, port: int | None = None, reason: str = ""
) -> Observed:
    """A report of the instance's node about it, its device unchanged."""
    assert instance.lease_id is not None
    fact = InstanceFact(
        instance_id=instance.pk,
        state=state,
        lease_id=instance.lease_id,
        fencing_token=instance.fencing_token,
        pid=pid,
        port=port,
        reason=reason,
    )
    devices = [
        a_device(device.stable_id, memory_bytes=device.memory_bytes, kind=device.kind)
        for device in Device.objects.filter(node=instance.node_id)
    ]
    return Observed(sequence=1, devices=devices, instances=[fact])
