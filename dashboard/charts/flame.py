"""The GPU memory wall: where its page asks, and the words that its script writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from dashboard import labels


def wall_words() -> dict[str, object]:
    """Evaluated in each request, because the language is the request's."""
    return {
        "zone": str(timezone.get_current_timezone()),
        "unknown": _("unknown"),
        "kinds": {
            "cluster_name": _("All GPUs"),
            "shared": pgettext("memory", "shared"),
            "cluster": pgettext("memory", "pool"),
            "node": pgettext("memory", "node"),
            "gpu": pgettext("memory", "GPU"),
            "tenant": pgettext("memory", "tenant"),
            "instance": pgettext("memory", "instance"),
            "segment": pgettext("memory", "segment"),
        },
        "segments": {
            "weights": pgettext("memory", "weights"),
            "kv_used": pgettext("memory", "KV cache"),
            "kv_free": pgettext("memory", "KV free"),
            "activations": pgettext("memory", "activations"),
            "lora": pgettext("memory", "LoRA"),
            "unused": pgettext("memory", "unused"),
            "other": pgettext("memory", "other"),
            "reserved": pgettext("memory", "reserved by others"),
            "free": pgettext("memory", "free"),
            "unknown": pgettext("memory", "unknown"),
            "kv_unknown": pgettext("memory", "KV cache, use unknown"),
        },
        "states": {name: str(word) for name, word in labels.INSTANCE_STATES.items()},
        "health": {name: str(word) for name, word in labels.DEVICE_HEALTH.items()},
        # Of the tooltip, before a value.
        "memory": _("Memory"),
        "share": _("Share"),
        "in_use": _("In use"),
        "make": _("Make"),
        "size": _("Size"),
        "reserved": _("Reserved"),
        "schedulable": _("Schedulable"),
        "schedulable_most": _("%(size)s, the largest hole"),
        "health_word": _("Health"),
        "as_of_word": _("Agent"),
        "stale_device": _("silent: these are its last figures"),
        "kv": _("KV cache in use"),
        "version": _("Version"),
        "engine": _("Engine"),
        "state": _("State"),
        "instance": _("Instance"),
        "tenant": _("Tenant"),
        "gpu": _("GPU"),
        "node": _("Node"),
        "of_parent": _("%(share)s of %(name)s"),
        "in_use_of": _("%(size)s, %(share)s"),
        # Of the figures.
        "of_kv": _("%(share)s of the KV caches"),
        "no_kv": _("no engine tells of its KV cache"),
        "of_all": _("%(share)s of all memory"),
        "in_use_now": _("%(size)s in use"),
        "in_use_at_least": _("at least %(size)s in use"),
        "no_use": _("no device tells its use"),
        "hole": _("largest hole %(size)s"),
        "zoom_to": _("Zoom in on %(name)s"),
        "no_hole": _("no device can take more"),
        "of_instances": _("/ %(n)s instances"),
        "of_one_instance": _("/ 1 instance"),
        "no_weights": _("no engine tells of its weights"),
        # Of what happens.
        "every_second": _("1 s"),
        "as_of": _("as of %(time)s"),
        "now": _("now"),
        "pause": _("Pause"),
        "go_on": _("Go on"),
        "back_to_live": _("Back to live"),
        "simulated_all": _("Simulated"),
        "simulated_some": _("Partly simulated"),
        "matches": _("%(n)s found"),
        "no_match": _("Nothing of that name is on the wall."),
        "scope_now": _("The wall shows %(kind)s %(name)s, %(size)s."),
        "rows": _("%(from)s to %(to)s of %(n)s rows"),
        "time": _("Time"),
        "no_frame": _("No figures are kept for %(time)s. The last 15 minutes are, every 5 seconds."),
        "frame_failed": _("The figures of that moment could not be read (%(why)s). Try again, or go back to live."),
        "no_history": _("Nothing has been recorded for this GPU in this range yet."),
        "history_failed": _("The history could not be read (%(why)s). It is tried again by itself."),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class WallPage:
    """What the wall's template needs. `scope` is the live channel's."""

    scope: str
    frame_url: str
    history_url: str
    processes_url: str = ""  # with a node's id of zeros; "": no processes are shown
    zone: str = field(default_factory=lambda: str(timezone.get_current_timezone()))
    words: Mapping[str, object] = field(default_factory=wall_words)
