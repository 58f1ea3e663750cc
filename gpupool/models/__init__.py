"""What runs where."""

from gpupool.models.catalog import Model, ModelAlias, ModelVersion, VersionState
from gpupool.models.engine import EngineSwitch
from gpupool.models.health import DeviceEvent, HealingAction, HealingActionState, XidRule
from gpupool.models.instance import Instance, InstanceDesire, InstanceState, MemoryMode
from gpupool.models.inventory import Device, Node, NodeState
from gpupool.models.lease import FencingBase, Lease, LeaseStatus, StoreEntry, StoreEvent, StoreLease, StoreRevision
from gpupool.models.memory import DeviceMinute, MemoryFrame
from gpupool.models.reservation import Reservation
from gpupool.models.trace import InstanceEvent, InstanceLog
from gpupool.models.training import Adapter, AdapterState, FineTuningEvent, FineTuningJob, TrainingFile

__all__ = [
    "Adapter",
    "AdapterState",
    "Device",
    "DeviceEvent",
    "DeviceMinute",
    "EngineSwitch",
    "FencingBase",
    "FineTuningEvent",
    "FineTuningJob",
    "HealingAction",
    "HealingActionState",
    "Instance",
    "InstanceDesire",
    "InstanceEvent",
    "InstanceLog",
    "InstanceState",
    "Lease",
    "LeaseStatus",
    "MemoryFrame",
    "MemoryMode",
    "Model",
    "ModelAlias",
    "ModelVersion",
    "Node",
    "NodeState",
    "Reservation",
    "StoreEntry",
    "StoreEvent",
    "StoreLease",
    "StoreRevision",
    "TrainingFile",
    "VersionState",
    "XidRule",
]
