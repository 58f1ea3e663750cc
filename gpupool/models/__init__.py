"""What runs where."""

from gpupool.models.catalog import Model, ModelVersion, VersionState
from gpupool.models.engine import EngineSwitch
from gpupool.models.instance import Instance, InstanceDesire, InstanceState
from gpupool.models.inventory import Device, Node, NodeState
from gpupool.models.lease import Lease, LeaseStatus, StoreEntry, StoreEvent, StoreLease, StoreRevision
from gpupool.models.training import Adapter, AdapterState, FineTuningEvent, FineTuningJob, TrainingFile

__all__ = [
    "Adapter",
    "AdapterState",
    "Device",
    "EngineSwitch",
    "FineTuningEvent",
    "FineTuningJob",
    "Instance",
    "InstanceDesire",
    "InstanceState",
    "Lease",
    "LeaseStatus",
    "Model",
    "ModelVersion",
    "Node",
    "NodeState",
    "StoreEntry",
    "StoreEvent",
    "StoreLease",
    "StoreRevision",
    "TrainingFile",
    "VersionState",
]
