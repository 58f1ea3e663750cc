"""The words that pages use for states and roles, in the reader's language."""

from collections.abc import Mapping
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

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
ALL: Final[Mapping[str, Words]] = {
    "instance": INSTANCE_STATES,
    "node": NODE_STATES,
    "health": DEVICE_HEALTH,
    "ability": ABILITIES,
    "guard": GUARD_STATES,
    "healing": HEALING_STATES,
    "remedy": REMEDIES,
    "tenant": TENANT_STATES,
    "key": KEY_STATES,
    "tier": SLA_TIERS,
    "fit": FIT,
    "role": TENANT_ROLES,
    "switch": ENGINE_SWITCHES,
    "capability": CAPABILITIES,
}

TONES: Final[Mapping[str, str]] = {
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
}
"""Which tone of pill a state gets; `idle` where none is named."""


def word(kind: str, value: str) -> str:
    """The word for `value` in the active language; the value itself where there is none."""
    return str(ALL[kind].get(value, value))
