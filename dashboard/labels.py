"""The words that pages use for states and roles, in the reader's language."""

from collections.abc import Mapping
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from dashboard.pool_words import ERROR_ANSWERS, EVENT_KINDS, EVENT_SOURCES, NODE_FACTS, WHOSE_ANSWERS

Words = Mapping[str, str | Promise]

INSTANCE_STATES: Final[Words] = {
    "requested": _("Requested"),
    "placing": _("Placing"),
    "staging": _("Staging"),
    "loading": _("Loading"),
    "warming": _("Warming"),
    "ready": _("Ready"),
    "asleep": _("Asleep"),
    "draining": _("Draining"),
    "stopped": _("Stopped"),
    "failed": _("Failed"),
    "unknown": _("Unknown"),
}
INSTANCE_WISHES: Final[Words] = {
    "running": pgettext_lazy("wish", "Shall run"),
    "asleep": pgettext_lazy("wish", "Shall sleep"),
    "stopped": pgettext_lazy("wish", "Shall stop"),
}
VERSION_STATES: Final[Words] = {
    "draft": pgettext_lazy("version", "Draft"),
    "admitted": pgettext_lazy("version", "Admitted"),
    "serving": pgettext_lazy("version", "Serving"),
    "retired": pgettext_lazy("version", "Retired"),
}
TIERS_OF_WEIGHTS: Final[Words] = {
    "cold": pgettext_lazy("weights", "Cold: on a disk"),
    "staged": pgettext_lazy("weights", "Staged: in its node's page cache"),
    "asleep": pgettext_lazy("weights", "Asleep: in the host's memory"),
    "awake": pgettext_lazy("weights", "Awake: on its devices"),
}
ACTORS: Final[Words] = {
    "user": pgettext_lazy("actor", "a person"),
    "key": pgettext_lazy("actor", "an API key"),
    "subject": pgettext_lazy("actor", "a token's subject"),
    "node": pgettext_lazy("actor", "its node"),
    "system": pgettext_lazy("actor", "the controller"),
}
AUDIT_ACTORS: Final[Words] = {
    "user": _("A person"),
    "key": _("An API key"),
    "subject": _("A token's subject"),
    "node": _("A node"),
    "system": _("The system"),
}
"""Kinds of who the audit log names (tenants.actor.Actor)."""

LEASE_STATES: Final[Words] = {
    "free": pgettext_lazy("lease", "Free"),
    "allocated": pgettext_lazy("lease", "Allocated"),
    "failed": _("Failed"),
    "unknown": _("Unknown"),
}
MEMORY_MODES: Final[Words] = {
    "full": pgettext_lazy("memory mode", "Full"),
    "mixed": pgettext_lazy("memory mode", "Mixed"),
    "cpu": pgettext_lazy("memory mode", "CPU"),
}
JOB_STATES: Final[Words] = {
    "queued": pgettext_lazy("job", "Queued"),
    "running": pgettext_lazy("job", "Running"),
    "succeeded": pgettext_lazy("job", "Succeeded"),
    "failed": _("Failed"),
    "cancelled": pgettext_lazy("job", "Cancelled"),
    "stored": pgettext_lazy("adapter", "Stored"),
    "retired": pgettext_lazy("adapter", "Retired"),
}
BATCHINGS: Final[Words] = {
    "continuous": pgettext_lazy("batching", "Continuous"),
    "slots": pgettext_lazy("batching", "In slots"),
    "server": pgettext_lazy("batching", "The server's own"),
}
GRAINS: Final[Words] = {
    "process": pgettext_lazy("isolation", "A process for each"),
    "shared": pgettext_lazy("isolation", "One process for many"),
    "outside": pgettext_lazy("isolation", "Whoever started it"),
}
NODE_STATES: Final[Words] = {
    "expected": _("Expected"),
    "online": _("Online"),
    "unreachable": _("Unreachable"),
}
DEVICE_HEALTH: Final[Words] = {
    "ok": pgettext_lazy("device", "Healthy"),
    "failed": _("Failed"),
    "unknown": _("Unknown"),
    "absent": pgettext_lazy("device", "Gone"),
}
ABILITIES: Final[Words] = {
    "cgroup": _("Control groups"),
    "user_namespaces": _("User namespaces"),
    "bubblewrap": _("Bubblewrap sandbox"),
    "gvisor": _("gVisor sandbox"),
    "mps": _("NVIDIA MPS"),
    "mig": _("NVIDIA MIG"),
    "cdi": _("Container device interface"),
    "container_toolkit": _("NVIDIA Container Toolkit"),
    "systemd": _("systemd"),
}
"""What a node can isolate instances by (gpupool.agent.capabilities)."""

GUARD_STATES: Final[Words] = {
    "watched": pgettext_lazy("guard", "Watched"),
    "signalled": _("Asked to give memory back"),
    "shed": _("Gets fewer requests"),
    "over": _("Over its claim"),
    "evicted": _("Evicted"),
}
HEALING_STATES: Final[Words] = {
    "dry_run": _("Dry run"),
    "pending": _("Pending"),
    "running": _("Running"),
    "done": _("Done"),
    "failed": _("Failed"),
    "superseded": _("Superseded"),
}
REMEDIES: Final[Words] = {
    "note": pgettext_lazy("healing", "Noted"),
    "clear_cache": _("Clear caches"),
    "restart_app": _("Restart the engine"),
    "rebuild": _("Rebuild the instance"),
    "drain_reset": _("Drain and reset"),
    "reset": _("Reset"),
    "end_processes": _("End own processes"),
    "reboot": _("Reboot the node"),
    "cordon": _("Take out, ask support"),
    "isolate": _("Isolate and move"),
    "limit_power": _("Limit the power"),
}
TENANT_STATES: Final[Words] = {"active": pgettext_lazy("tenant", "Active"), "suspended": _("Suspended")}
KEY_STATES: Final[Words] = {
    "active": pgettext_lazy("key", "Active"),
    "expired": _("Expired"),
    "revoked": _("Revoked"),
}
ENGINE_SWITCHES: Final[Words] = {"on": pgettext_lazy("engine", "On"), "off": pgettext_lazy("engine", "Off")}
CAPABILITIES: Final[Words] = {
    "chat": pgettext_lazy("capability", "Chat"),
    "completions": pgettext_lazy("capability", "Completions"),
    "embeddings": pgettext_lazy("capability", "Embeddings"),
    "rerank": pgettext_lazy("capability", "Rerank"),
    "tokenize": pgettext_lazy("capability", "Tokenize"),
    "infer": pgettext_lazy("capability", "Tensors"),
    "load": pgettext_lazy("capability", "Load"),
    "sleep": pgettext_lazy("capability", "Sleep"),
    "adapters": pgettext_lazy("capability", "Adapters"),
    "request_adapters": pgettext_lazy("capability", "Adapters by request"),
    "launch": pgettext_lazy("capability", "Start"),
}
"""What engines can do (gpupool.engines.base.Capability); plugins may bring words of their own."""

CAPABILITY_MEANINGS: Final[Words] = {
    "load": _("It tells how many requests it works on, and how full its cache is."),
    "sleep": _("It can give its memory back, and take it again."),
    "adapters": _("It loads and unloads LoRA adapters while it runs. The pool does not ask it to yet."),
    "request_adapters": _("It takes LoRA adapters with each request."),
    "launch": _("The pool can start it; others are attached by their address."),
}
FIT: Final[Words] = {
    "fits": _("It fits"),
    "preempts": _("It fits once others have gone"),
    "waits": _("It waits for room"),
    "does_not_fit": _("It does not fit"),
    "chosen": pgettext_lazy("device", "Chosen"),
    "possible": pgettext_lazy("device", "Possible"),
    "unfit": pgettext_lazy("device", "Unfit"),
}
"""Verdicts of a dry run (gpupool.reads.dry_run), of an instance and of a device."""

EXPORT_STATES: Final[Words] = {
    "waiting": pgettext_lazy("export", "Waiting"),
    "writing": pgettext_lazy("export", "Being written"),
    "ready": pgettext_lazy("export", "Ready"),
    "failed": _("Failed"),
}
SLA_TIERS: Final[Words] = {"gold": _("Gold"), "silver": _("Silver"), "bronze": _("Bronze")}
PLATFORM_ROLES: Final[Words] = {
    "read_only": _("Platform, read-only"),
    "operator": _("Platform operator"),
    "superuser": _("Platform superuser"),
}
TENANT_ROLES: Final[Words] = {
    "owner": _("Owner"),
    "admin": _("Admin"),
    "developer": _("Developer"),
    "viewer": _("Viewer"),
    "billing": _("Billing"),
}
METRICS: Final[Words] = {
    "requests": pgettext_lazy("metric", "Requests"),
    "tokens": pgettext_lazy("metric", "Tokens"),
    "input_tokens": pgettext_lazy("metric", "Input tokens"),
    "output_tokens": pgettext_lazy("metric", "Output tokens"),
    "money": pgettext_lazy("metric", "Money"),
    "concurrency": pgettext_lazy("metric", "Requests at once"),
    "held_requests": pgettext_lazy("metric", "Held requests"),
    "gpus": pgettext_lazy("metric", "GPUs"),
    "gpu_memory": pgettext_lazy("metric", "GPU memory"),
}
"""What a limit counts."""

WINDOWS: Final[Words] = {
    "minute": pgettext_lazy("rate", "a minute"),
    "bucket": _("in a token bucket"),
    "day": pgettext_lazy("rate", "a day"),
    "month": pgettext_lazy("rate", "a month"),
    "standing": _("at any moment"),
}
"""Over which time, said after what it counts."""

REQUEST_STATES: Final[Words] = {
    "open": pgettext_lazy("request", "Open"),
    "approved": pgettext_lazy("request", "Approved"),
    "declined": pgettext_lazy("request", "Declined"),
    "withdrawn": pgettext_lazy("request", "Withdrawn"),
    "expired": pgettext_lazy("request", "Expired"),
}
NOTICES: Final[Words] = {
    "budget_share": _("A share of a budget is used"),
    "budget_refusing": _("A budget refuses requests"),
    "budget_forecast": _("A budget will not last"),
    "key_expiring": _("A key expires soon"),
    "key_compromised": _("A key is listed as leaked"),
    "grant_ending": _("A grant ends soon"),
    "boost_ending": _("A raised limit ends soon"),
    "tenant_suspended": _("The tenant is suspended"),
    "tenant_resumed": _("The tenant is resumed"),
    "webhook_disabled": _("A webhook was disabled"),
    "objective_burning": _("An error budget burns too fast"),
    "objective_recovered": _("An objective has recovered"),
    "request_opened": _("More was asked for"),
    "request_decided": _("A request was decided"),
    "test": _("A test"),
}
"""Kinds of notices (tenants.policies.notices.NoticeKind); messages name them by their codes."""

CAPACITY_VERDICTS: Final[Words] = {
    "fits": _("All that is promised could be used at once"),
    "fits_as_used": _("More is promised than there is; as it is used, it fits"),
    "exceeds": _("With what is used now there is no room"),
    "no_capacity": _("No instance is ready"),
    "unknown": _("An instance does not say how much it takes"),
}
HEALTH: Final[Words] = {
    "fine": pgettext_lazy("health", "Fine"),
    "warning": pgettext_lazy("health", "Look at it"),
    "broken": pgettext_lazy("health", "Broken"),
    "unknown": _("Unknown"),
}
OUTCOMES: Final[Words] = {
    "success": pgettext_lazy("outcome", "Answered"),
    "cancelled": pgettext_lazy("outcome", "Client left"),
    "truncated": pgettext_lazy("outcome", "Broken off"),
    "failed": _("Failed"),
    "lost": pgettext_lazy("outcome", "Lost"),
}
STAGES: Final[Words] = {
    "tokenise": pgettext_lazy("stage", "Tokenise"),
    "queue": pgettext_lazy("stage", "Queue"),
    "connect": pgettext_lazy("stage", "Connect"),
    "prefill": pgettext_lazy("stage", "Prefill"),
    "first_decode": pgettext_lazy("stage", "First decode"),
    "decode": pgettext_lazy("stage", "Decode"),
    "answer": pgettext_lazy("stage", "Answer"),
}
"""Of a request's time; "answer" is all of a whole one's after the connection."""
USAGE_SOURCES: Final[Words] = {
    "engine": pgettext_lazy("tokens", "counted by the engine"),
    "estimated": pgettext_lazy("tokens", "estimated"),
    "apportioned": pgettext_lazy("tokens", "another request's: the answer was shared"),
    "none": pgettext_lazy("tokens", "not counted"),
}

ALL: Final[Mapping[str, Words]] = {
    "instance": INSTANCE_STATES,
    "wish": INSTANCE_WISHES,
    "version": VERSION_STATES,
    "weights": TIERS_OF_WEIGHTS,
    "actor": ACTORS,
    "audit_actor": AUDIT_ACTORS,
    "lease": LEASE_STATES,
    "memory_mode": MEMORY_MODES,
    "job": JOB_STATES,
    "batching": BATCHINGS,
    "grain": GRAINS,
    "answer": ERROR_ANSWERS,
    "whose": WHOSE_ANSWERS,
    "event": EVENT_KINDS,
    "event_source": EVENT_SOURCES,
    "node": NODE_STATES,
    "fact": NODE_FACTS,
    "health": DEVICE_HEALTH,
    "ability": ABILITIES,
    "guard": GUARD_STATES,
    "healing": HEALING_STATES,
    "remedy": REMEDIES,
    "tenant": TENANT_STATES,
    "key": KEY_STATES,
    "tier": SLA_TIERS,
    "fit": FIT,
    "export": EXPORT_STATES,
    "role": TENANT_ROLES,
    "switch": ENGINE_SWITCHES,
    "capability": CAPABILITIES,
    "metric": METRICS,
    "window": WINDOWS,
    "request": REQUEST_STATES,
    "notice": NOTICES,
    "capacity": CAPACITY_VERDICTS,
    "part": HEALTH,
    "outcome": OUTCOMES,
    "stage": STAGES,
    "usage_source": USAGE_SOURCES,
}

TONES: Final[Mapping[str, str]] = {
    "success": "good",
    "truncated": "bad",
    "lost": "bad",
    "fine": "good",
    "warning": "warn",
    "broken": "bad",
    "open": "busy",
    "approved": "good",
    "declined": "bad",
    "fits_as_used": "warn",
    "exceeds": "bad",
    "no_capacity": "bad",
    "ready": "good",
    "online": "good",
    "ok": "good",
    "active": "good",
    "on": "good",
    "fits": "good",
    "chosen": "good",
    "possible": "busy",
    "preempts": "warn",
    "waits": "warn",
    "waiting": "busy",
    "writing": "busy",
    "does_not_fit": "bad",
    "requested": "busy",
    "placing": "busy",
    "staging": "busy",
    "loading": "busy",
    "warming": "busy",
    "watched": "warn",
    "signalled": "warn",
    "shed": "warn",
    "over": "bad",
    "evicted": "bad",
    "done": "good",
    "pending": "busy",
    "running": "busy",
    "dry_run": "warn",
    "draining": "warn",
    "expected": "warn",
    "unreachable": "bad",
    "failed": "bad",
    "suspended": "bad",
    "revoked": "idle",
    "expired": "warn",
    "unknown": "warn",
    "serving": "good",
    "admitted": "busy",
    "draft": "warn",
    "allocated": "good",
    "succeeded": "good",
    "queued": "busy",
}
"""Which tone of pill a state gets; `idle` where none is named."""


def word(kind: str, value: str) -> str:
    """The word for `value` in the active language; the value itself where there is none."""
    return str(ALL[kind].get(value, value))
