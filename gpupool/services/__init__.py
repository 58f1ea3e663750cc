"""Every write of this app."""

from gpupool.services.attach import Attached, EngineAddress, attach_engine, parse_engine_url
from gpupool.services.catalogue import create_model, create_version, retire_version, serve_version, set_replicas
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
)
from gpupool.services.placing import claim_and_place

__all__ = [
    "Attached",
    "EngineAddress",
    "EngineSwitched",
    "Intake",
    "NewNodeToken",
    "SessionSuperseded",
    "apply_hello",
    "apply_observed",
    "attach_engine",
    "authenticate_node",
    "claim_and_place",
    "compact_store_events",
    "create_model",
    "create_node",
    "create_version",
    "declare_node_lost",
    "explain_waiting",
    "mark_instance_unknown",
    "mark_node_unreachable",
    "parse_engine_url",
    "request_instance",
    "retire_version",
    "revoke_node_token",
    "rotate_node_token",
    "serve_version",
    "set_engine_enabled",
    "set_node_cordoned",
    "set_probed_state",
    "set_replicas",
    "stop_instance",
    "sweep_claims",
    "switched_off",
    "why_switched_off",
]
