"""Every write of this app."""

from gpupool.services.adapters import register_adapter, retire_adapter
from gpupool.services.admission import (
    NotAdmitted,
    admit_version,
    reopen_version,
    retire_version,
    serve_version,
    switch_version,
)
from gpupool.services.aliases import create_alias, delete_alias
from gpupool.services.attach import Attached, EngineAddress, attach_engine, parse_engine_url
from gpupool.services.catalogue import change_version, create_model, create_version, set_replicas
from gpupool.services.claims import ClaimNumbers
from gpupool.services.engines import EngineSwitched, set_engine_enabled, switched_off, why_switched_off
from gpupool.services.fleet import compact_store_events, declare_node_lost, mark_node_unreachable, sweep_claims
from gpupool.services.instances import (
    explain_waiting,
    mark_instance_unknown,
    request_instance,
    set_probed_state,
    stop_instance,
)
from gpupool.services.inventory import Intake, SessionSuperseded, apply_hello, apply_observed
from gpupool.services.nodes import (
    NewNodeToken,
    authenticate_node,
    create_node,
    revoke_node_token,
    rotate_node_token,
    set_node_cordoned,
    set_node_maintenance,
)
from gpupool.services.placing import ClaimPlan, claim_and_place, plan_claim
from gpupool.services.rollback import roll_back_version
from gpupool.services.simulated import RemovedNode, remove_simulated_node
from gpupool.services.sleeping import sleep_instance, wake_instance
from gpupool.services.tenant_pool import Acquired, acquire_instance, release_instance

__all__ = [
    "Acquired",
    "Attached",
    "ClaimNumbers",
    "ClaimPlan",
    "EngineAddress",
    "EngineSwitched",
    "Intake",
    "NewNodeToken",
    "NotAdmitted",
    "RemovedNode",
    "SessionSuperseded",
    "acquire_instance",
    "admit_version",
    "apply_hello",
    "apply_observed",
    "attach_engine",
    "authenticate_node",
    "change_version",
    "claim_and_place",
    "compact_store_events",
    "create_alias",
    "create_model",
    "create_node",
    "create_version",
    "declare_node_lost",
    "delete_alias",
    "explain_waiting",
    "mark_instance_unknown",
    "mark_node_unreachable",
    "parse_engine_url",
    "plan_claim",
    "register_adapter",
    "release_instance",
    "remove_simulated_node",
    "reopen_version",
    "request_instance",
    "retire_adapter",
    "retire_version",
    "revoke_node_token",
    "roll_back_version",
    "rotate_node_token",
    "serve_version",
    "set_engine_enabled",
    "set_node_cordoned",
    "set_node_maintenance",
    "set_probed_state",
    "set_replicas",
    "sleep_instance",
    "stop_instance",
    "sweep_claims",
    "switch_version",
    "switched_off",
    "wake_instance",
    "why_switched_off",
]
