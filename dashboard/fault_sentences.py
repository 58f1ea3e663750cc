"""What error codes mean, what healing found of them, and what came of what was done. Part of dashboard.reasons."""

from typing import Final

from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from dashboard import labels

SENTENCES: Final = (
    # Findings (gpupool.policies.findings). `fault` is what an error code means, with whose word it is; `answer` a verb.
    _("XID %(code)s, %(fault)s says %(answer)s."),
    _("Code %(code)s, %(fault)s says %(answer)s."),
    _("XID %(code)s, %(fault)s: its text names no state (%(text)s)."),
    _("XID %(code)s, %(fault)s: the driver asks for %(answer)s."),
    _("XID %(code)s, %(fault)s: the cleanup after XID %(first)s."),
    _("XID %(code)s, %(fault)s: the row of the error beside it could not be remapped."),
    _("XID %(code)s, %(fault)s: the row of the double-bit error beside it was recorded; its reset brings the new row."),
    _("XID %(code)s, %(fault)s: a detail of the double-bit error beside it."),
    _("XID %(code)s, %(fault)s: it was over again with XID 162."),
    _("XID %(code)s is in no catalogue: the instances that it hit are rebuilt."),
    _("A failed row remap comes back after every reset: the device is for its maker to replace."),
    _("An error without a number."),
    _("Verification failed: %(why)s."),
    _("Its agent ended it: %(why)s"),
    _("It changed."),
    _("Nobody knows this event: %(why)s."),
    _("The driver asks for nothing any more."),
    _("The driver names a recovery action that nobody knows: %(text)s."),
    _("An ECC error that could not be corrected: as XID 48, the device needs a reset."),
    _("Corrected ECC errors: a trend to watch, as XID 92."),
    _("As XID 79, the device is gone: %(why)s."),
    _("The device is gone: %(why)s."),
    _("A row could not be remapped: as XID 64, the device needs a reset."),
    _("A row was remapped or a page retired: recorded, as XID 63."),
    _("A row remap waits for a reset: it is done when nothing runs on the device."),
    _("it does not answer any more"),
    # Differences between two looks (gpupool.discovery.snapshot), and what the driver tells.
    _("%(device)s is not listed any more"),
    _("%(device)s does not answer: %(why)s"),
    _("it does not answer"),
    _("The driver asks for %(answer)s, and for %(before)s before."),
    _("%(count)s uncorrectable ECC errors, %(before)s before."),
    _("%(count)s uncorrectable ECC errors over its life, %(before)s before."),
    _("%(count)s memory rows remapped for uncorrectable errors, %(before)s before."),
    _("%(count)s memory rows remapped for correctable errors, %(before)s before."),
    _("%(count)s retired memory pages, %(before)s before."),
    _("A memory row waits to be remapped."),
    _("A memory row could not be remapped: remapping failed."),
    _("Memory pages wait to be retired."),
    _("name was %(before)s and is %(now)s."),
    _("memory_bytes was %(before)s and is %(now)s."),
    _("allocatable was %(before)s and is %(now)s."),
    _("partition_of was %(before)s and is %(now)s."),
    _("pci_address was %(before)s and is %(now)s."),
    _("driver was %(before)s and is %(now)s."),
    _("vbios was %(before)s and is %(now)s."),
    _("serial was %(before)s and is %(now)s."),
    _("XID %(code)s was reported by the NVIDIA driver."),
    _("Double bit ECC error was reported by the NVIDIA driver."),
    # The memory guard of a node (gpupool.agent.guard, gpupool.policies.oom_guard), and what nodes could not tell.
    _("It uses %(share)s of what its lease leaves it, %(count)s times in a row."),
    _(
        "It uses %(share)s of what its lease leaves it, %(times)s times in a row. %(count)s of its processes was "
        "asked to give memory back."
    ),
    _(
        "It uses %(share)s of what its lease leaves it, %(times)s times in a row. %(count)s of its processes were "
        "asked to give memory back."
    ),
    _("It was asked to give memory back, and that did not help."),
    _("It gets at most %(count)s requests at once until it is calm."),
    _("It is calm again: it gets as many requests as before."),
    _(
        "An instance on %(device)s uses %(share)s of what its lease leaves it and grew by %(size)s MB in %(count)s "
        "samples; of those on the device this has the lowest priority."
    ),
    _("%(count)s events from then on were not kept: the web process was away for too long."),
    # What came of actions (gpupool.agent.actions), by a node's agent; and of wishes that nobody has begun on.
    _("Done."),
    _("Another was asked for."),
    _("Healing gives it back at its next look."),
    _("This agent does not know the action %(name)s: install the release's."),
    _("%(name)s is nothing that an agent does."),
    _("A defect of the agent ended it, see its log: %(text)s"),
    _("%(device)s is divided: a reset would end the work of all its parts."),
    _("This agent cannot reset devices of %(name)s."),
    _("Nothing holds it; it would run: %(text)s"),
    _("No process uses a GPU; it would run: %(text)s"),
    _("It would run: %(text)s"),
    _("It restarts: %(text)s"),
    _("It was reset, and answers."),
    _("Process %(pid)s (%(name)s) uses %(device)s."),
    _("Process %(pid)s (%(name)s) still holds it."),
    _("Instance %(name)s still runs on this node."),
    _("Instance %(name)s still runs on it."),
    _("The machine did not go down in time."),
    _("It cannot be seen what is in use there."),
    _("Our processes %(names)s are still on it."),
    _("Nothing of ours is on it any more; %(size)s bytes are others'."),
    _("%(size)s bytes are in use there that no process owns: its memory has not returned."),
    _("%(count)s processes were asked to empty their caches."),
    _("%(device)s has no power limit that this agent can set."),
    _("It was not said how many watts."),
    _("Its power limit is %(count)s W until its node restarts."),
    _("%(command)s ended with code %(code)s and said: %(text)s"),
    _("%(command)s cannot be run: it was not found."),
    _("%(command)s cannot be run: %(why)s."),
    _("%(command)s did not answer within %(seconds)s s and was killed."),
    _("%(command)s printed more than %(size)s bytes."),
)  # fmt: skip

MEANINGS: Final = (
    _("graphics engine exception"),
    _("GPU memory page fault (MMU)"),
    _("GPU stopped processing"),
    _("preemptive cleanup after an earlier error"),
    _("double-bit ECC error"),
    _("unused on Ampere and newer (older: microcontroller breakpoint)"),
    _("microcontroller halt"),
    _("row remap or page retirement event recorded"),
    _("row remap or page retirement failure"),
    _("NVDEC0 exception"),
    _("graphics engine class error"),
    _("NVLink error"),
    _("GPU has fallen off the bus"),
    _("high single-bit ECC rate"),
    _("contained memory error"),
    _("uncontained memory error"),
    _("context switch timeout"),
    _("security fault"),
    _("GSP RPC timeout"),
    _("GSP error"),
    _("C2C link error"),
    _("link training failed"),
    _("NVLink privilege error"),
    _("ECC unrecovered error"),
    _("GPU initialisation error"),
    _("key rotation error"),
    _("recovery action changed"),
    _("resource retirement event"),
    _("resource retirement failure"),
    _("GPU fatal timeout"),
    _("power smoothing re-engaged"),
    _("power smoothing disengaged"),
    _("DRAM detail of 48"),
    _("SRAM detail of 48"),
    _("single-bit ECC error"),
    _("GPU hang"),
    _("verification failed"),
    _("an error"),
)
"""Of error codes (gpupool.policies.xid)."""

NOTES: Final = (
    _("look at the application first"),
    _("restart the app only if its process died; never reset"),
    _("correlate with the XID before it"),
    _("then check the SRAM threshold flag; RMA if set"),
    _("cordon"),
    _("schedule a reset at convenience"),
    _("RMA path"),
    _("often mis-listed as a GPU hang"),
    _("recurrence: RMA"),
    _("power cycle"),
    _("trend only"),
    _("the victim application only"),
    _("drain first"),
    _("escalate to reboot"),
    _("act on the target state in parentheses"),
    _("cancels an open 163"),
    _("0x8, there called an XID 69 hang"),
    _("0x1a: isolate the device, migrate its instances"),
)
"""What the catalogues say beside them; operators write their own."""

_NOTED: Final = _("%(meaning)s (%(note)s)")
_WHOSE: Final = _("%(fault)s: %(whose)s")


def fault_said(text: str) -> str:
    """What an error code means, in the active language: a meaning, its note in brackets, and whose word it is."""
    what, colon, whose = text.rpartition(": ")
    if colon and (told := _meaning(what)) is not None:
        return gettext(_WHOSE) % {"fault": told, "whose": labels.word("whose", whose)}
    return _meaning(text) or text


def note_said(text: str) -> str:
    """A catalogue's note in the active language; operators' own are as they wrote them."""
    return gettext(text) if text in NOTES else text


def _meaning(text: str) -> str | None:
    """None for one that is not known."""
    if text in MEANINGS:
        return gettext(text)
    for meaning in MEANINGS:
        if text.startswith(f"{meaning} (") and text.endswith(")"):
            note = note_said(text[len(meaning) + 2 : -1])
            return gettext(_NOTED) % {"meaning": gettext(meaning), "note": note}
    return None
