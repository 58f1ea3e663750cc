"""The words for what nodes tell, and for what is answered to it. Pages take them by dashboard.labels, as all words."""

from collections.abc import Mapping
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

ERROR_ANSWERS: Final[Mapping[str, str | Promise]] = {
    "restart_app": _("Restart the engine"),
    "drain_reset": _("Drain and reset"),
    "reset_gpu": _("Reset the GPU"),
    "drain_reboot": _("Drain and reboot the node"),
    "reboot_vm": _("Reboot the node"),
    "ignore": _("Do nothing"),
    "contact_support": _("Take out, ask support"),
    "follow_text": _("Follow the message"),
    "merge_48": _("As XID 48"),
    "cancel_163": _("Ends XID 163"),
    "clear_cache": _("Clear caches"),
    "isolate": _("Isolate and move"),
    "rebuild": _("Rebuild the instance"),
}
"""What is answered to an error code (gpupool.policies.xid.Verb)."""

WHOSE_ANSWERS: Final[Mapping[str, str | Promise]] = {
    "operator": _("Platform operator"),
    "NVIDIA XID catalogue": _("NVIDIA XID catalogue"),
    "design paper": pgettext_lazy("whose", "Design paper"),
    "driver's recovery action": pgettext_lazy("whose", "The driver's recovery action"),
    "default": pgettext_lazy("whose", "Default"),
}
"""Whose word it is (gpupool.policies.xid.Provenance); operators may name others."""

EVENT_KINDS: Final[Mapping[str, str | Promise]] = {
    "xid": "XID",
    "sxid": "SXid",
    "code": pgettext_lazy("event", "Error code"),
    "ecc": pgettext_lazy("event", "ECC error"),
    "remap": pgettext_lazy("event", "Row remap"),
    "recovery_action": pgettext_lazy("event", "Recovery action"),
    "lost": pgettext_lazy("event", "Lost device"),
    "hang": pgettext_lazy("event", "Hang"),
    "reset": pgettext_lazy("event", "Reset"),
    "crash": pgettext_lazy("event", "Crash"),
    "verify": pgettext_lazy("event", "Verification"),
    "change": pgettext_lazy("event", "Change"),
    "driver": pgettext_lazy("event", "Driver"),
    "memory": pgettext_lazy("event", "Memory"),
    "evicted": _("Evicted"),
    "mps_clients": pgettext_lazy("event", "MPS clients"),
    "unseen": pgettext_lazy("event", "Device not seen"),
    "dropped": pgettext_lazy("event", "Events left out"),
}
EVENT_SOURCES: Final[Mapping[str, str | Promise]] = {
    "nvml": "NVML",
    "fabric_manager": "Fabric Manager",
    "kernel_log": pgettext_lazy("event", "Kernel log"),
    "snapshot": pgettext_lazy("event", "Comparison"),
    "guard": pgettext_lazy("event", "Memory guard"),
    "agent": pgettext_lazy("event", "Agent"),
    "intake": pgettext_lazy("event", "Web process"),
}
"""Of what agents notice (gpupool.models.DeviceEvent)."""

NODE_FACTS: Final[Mapping[str, str | Promise]] = {
    "os": pgettext_lazy("fact", "Operating system"),
    "kernel": pgettext_lazy("fact", "Kernel"),
    "cpu": pgettext_lazy("fact", "Processor"),
    "no_gpu_reason": pgettext_lazy("fact", "Why there is no GPU"),
    "kernel_log": pgettext_lazy("fact", "Kernel log"),
}
"""What agents tell of their machine (gpupool.stream.messages.Hello)."""
