"""What healing can do, how strong each of it is, and what follows where it did not help. Pure.

One table maps the verbs of the error catalogues onto these actions; another says what comes next on the way
restart, drain and reset, reboot, isolate.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from gpupool.policies.xid import Verb


class Remedy(StrEnum):
    """The words of HealingAction.action and of DeviceAction.action."""

    NOTE = "note"  # nothing is done, and it is said why
    CLEAR_CACHE = "clear_cache"  # engines that can are asked to give unused memory back
    RESTART_APP = "restart_app"  # the engines that were hit are stopped, and new ones asked for
    REBUILD = "rebuild"  # the same, where nobody knows the error
    DRAIN_RESET = "drain_reset"  # the device is emptied, then reset
    RESET = "reset"  # the same at once: what runs there is lost already
    END_PROCESSES = "end_processes"  # instead of a reset of a shared device: own processes end, memory's return is seen
    REBOOT = "reboot"  # the node is emptied, then restarted
    CORDON = "cordon"  # nothing new on the device until a person gives it back
    ISOLATE = "isolate"  # the same, and what runs there moves away


STRENGTH: Final[Mapping[Remedy, int]] = {remedy: place for place, remedy in enumerate(Remedy)}
"""Of several that are asked for, the strongest is done.

A cordon stands above all hardware actions: who says that support has to look says that a reset does not help.
"""

REMEDY_OF: Final[Mapping[Verb, Remedy]] = {
    Verb.IGNORE: Remedy.NOTE,
    Verb.CANCEL_163: Remedy.NOTE,  # closes what 163 opened; neither needs anything to be done
    Verb.CLEAR_CACHE: Remedy.CLEAR_CACHE,
    Verb.RESTART_APP: Remedy.RESTART_APP,
    Verb.REBUILD: Remedy.REBUILD,
    Verb.DRAIN_RESET: Remedy.DRAIN_RESET,
    Verb.RESET_GPU: Remedy.RESET,
    Verb.MERGE_48: Remedy.RESET,  # as 48 itself, which it is told beside
    Verb.DRAIN_REBOOT: Remedy.REBOOT,
    Verb.REBOOT_VM: Remedy.REBOOT,
    Verb.CONTACT_SUPPORT: Remedy.CORDON,
    Verb.ISOLATE: Remedy.ISOLATE,
    # Without a state in its text, XID 154 says that something changed, not what.
    Verb.FOLLOW_TEXT: Remedy.NOTE,
}

HARDWARE: Final = frozenset({Remedy.DRAIN_RESET, Remedy.RESET, Remedy.REBOOT})
"""Done for real only where hardware actions are switched on."""

RESETS: Final = frozenset({Remedy.DRAIN_RESET, Remedy.RESET})

ASKS_NODE: Final = HARDWARE | {Remedy.END_PROCESSES, Remedy.CLEAR_CACHE}
"""A row for the node's agent, which tells how it ended."""

LIMIT_POWER: Final = "limit_power"
"""What a person wants of a GPU. It answers no error, and so is none of the above; an agent does it all the same."""

TAKES_OUT: Final = frozenset({Remedy.CORDON, Remedy.ISOLATE})

NEXT: Final[Mapping[Remedy, Remedy]] = {
    Remedy.NOTE: Remedy.NOTE,
    Remedy.CLEAR_CACHE: Remedy.RESTART_APP,
    Remedy.RESTART_APP: Remedy.DRAIN_RESET,
    Remedy.REBUILD: Remedy.DRAIN_RESET,
    Remedy.DRAIN_RESET: Remedy.REBOOT,
    Remedy.RESET: Remedy.REBOOT,
    Remedy.END_PROCESSES: Remedy.ISOLATE,  # a reboot would hit whom it is shared with
    Remedy.REBOOT: Remedy.ISOLATE,
    Remedy.CORDON: Remedy.ISOLATE,
    Remedy.ISOLATE: Remedy.ISOLATE,
}
"""Where the error came back although this was done."""


def stronger(first: Remedy, second: Remedy) -> Remedy:
    return first if STRENGTH[first] >= STRENGTH[second] else second


WORDS: Final[Mapping[Remedy, str]] = {
    Remedy.NOTE: "nothing is done",
    Remedy.CLEAR_CACHE: "engines on it are asked to empty their caches",
    Remedy.RESTART_APP: "the engines that it hit are restarted",
    Remedy.REBUILD: "the instances that it hit are rebuilt",
    Remedy.DRAIN_RESET: "the device is drained and reset",
    Remedy.RESET: "the device is reset",
    Remedy.END_PROCESSES: "our processes on it are ended, and the return of their memory is verified",
    Remedy.REBOOT: "the node is drained and restarted",
    Remedy.CORDON: "nothing new is placed on it until a person gives it back",
    Remedy.ISOLATE: "it is isolated and its instances move away",
}
