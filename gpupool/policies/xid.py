"""What an error code means and what is done about it: operator's rules, NVIDIA's catalogue, the design papers' codes.

They are asked in that order, and whose word it is stays with the answer. A code that nobody knows has no rule: the
instances that it hit are rebuilt (see `policies.findings`). The catalogue is the one that NVIDIA publishes
(https://docs.nvidia.com/deploy/xid-errors/), as read for this project.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Verb(StrEnum):
    """What the catalogue asks for; `policies.remedy.REMEDY_OF` says what that is here."""

    RESTART_APP = "restart_app"
    DRAIN_RESET = "drain_reset"
    RESET_GPU = "reset_gpu"
    DRAIN_REBOOT = "drain_reboot"
    REBOOT_VM = "reboot_vm"
    IGNORE = "ignore"
    CONTACT_SUPPORT = "contact_support"
    FOLLOW_TEXT = "follow_text"  # XID 154: the state in the last parentheses
    MERGE_48 = "merge_48"  # a detail of a double-bit error
    CANCEL_163 = "cancel_163"  # ends an open 163
    CLEAR_CACHE = "clear_cache"  # the design papers' own, from here on
    ISOLATE = "isolate"
    REBUILD = "rebuild"


class Provenance(StrEnum):
    """Whose word a rule is. Operators may name another."""

    OPERATOR = "operator"
    NVIDIA = "NVIDIA XID catalogue"
    PAPER = "design paper"
    DRIVER = "driver's recovery action"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Rule:
    """The answer to one code."""

    code: int
    meaning: str
    verb: Verb
    note: str = ""
    provenance: str = Provenance.NVIDIA


def _nvidia(*rows: tuple[int, str, Verb] | tuple[int, str, Verb, str]) -> Mapping[int, Rule]:
    return {row[0]: Rule(row[0], row[1], row[2], row[3] if len(row) > 3 else "") for row in rows}


CATALOGUE: Final = _nvidia(
    (13, "graphics engine exception", Verb.RESTART_APP),
    (31, "GPU memory page fault (MMU)", Verb.RESTART_APP, "look at the application first"),
    (43, "GPU stopped processing", Verb.IGNORE, "restart the app only if its process died; never reset"),
    (45, "preemptive cleanup after an earlier error", Verb.IGNORE, "correlate with the XID before it"),
    (46, "GPU stopped processing", Verb.RESET_GPU),
    (48, "double-bit ECC error", Verb.RESET_GPU, "then check the SRAM threshold flag; RMA if set"),
    (61, "unused on Ampere and newer (older: microcontroller breakpoint)", Verb.CONTACT_SUPPORT, "cordon"),
    (62, "microcontroller halt", Verb.RESET_GPU),
    (63, "row remap or page retirement event recorded", Verb.IGNORE, "schedule a reset at convenience"),
    (64, "row remap or page retirement failure", Verb.RESET_GPU, "RMA path"),
    (68, "NVDEC0 exception", Verb.RESTART_APP),
    (69, "graphics engine class error", Verb.RESTART_APP, "often mis-listed as a GPU hang"),
    (74, "NVLink error", Verb.DRAIN_RESET, "recurrence: RMA"),
    (79, "GPU has fallen off the bus", Verb.DRAIN_REBOOT, "power cycle"),
    (92, "high single-bit ECC rate", Verb.IGNORE, "trend only"),
    (94, "contained memory error", Verb.RESTART_APP, "the victim application only"),
    (95, "uncontained memory error", Verb.RESET_GPU, "drain first"),
    (109, "context switch timeout", Verb.RESET_GPU),
    (110, "security fault", Verb.RESET_GPU),
    (119, "GSP RPC timeout", Verb.RESET_GPU, "escalate to reboot"),
    (120, "GSP error", Verb.RESET_GPU, "escalate to reboot"),
    (121, "C2C link error", Verb.IGNORE),
    (136, "link training failed", Verb.RESET_GPU),
    (137, "NVLink privilege error", Verb.IGNORE),
    (140, "ECC unrecovered error", Verb.RESET_GPU, "RMA path"),
    (143, "GPU initialisation error", Verb.RESET_GPU),
    (151, "key rotation error", Verb.REBOOT_VM),
    (154, "recovery action changed", Verb.FOLLOW_TEXT, "act on the target state in parentheses"),
    (156, "resource retirement event", Verb.RESET_GPU),
    (157, "resource retirement failure", Verb.CONTACT_SUPPORT),
    (158, "GPU fatal timeout", Verb.RESET_GPU),
    (162, "power smoothing re-engaged", Verb.CANCEL_163, "cancels an open 163"),
    (163, "power smoothing disengaged", Verb.IGNORE),
    (171, "DRAM detail of 48", Verb.MERGE_48),
    (172, "SRAM detail of 48", Verb.MERGE_48),
)
"""By XID."""

PAPER_CODES: Final[Mapping[int, Rule]] = {
    rule.code: rule
    for rule in (
        Rule(0x01, "single-bit ECC error", Verb.CLEAR_CACHE, "0x1", Provenance.PAPER),
        # The paper calls it XID 69, which NVIDIA's catalogue answers with a restart of the application.
        Rule(0x08, "GPU hang", Verb.RESET_GPU, "0x8, there called an XID 69 hang", Provenance.PAPER),
        Rule(0x1A, "verification failed", Verb.ISOLATE, "0x1a: isolate the device, migrate its instances",
             Provenance.PAPER),
    )
}  # fmt: skip
"""The design papers' own numbers, which NVIDIA's catalogue does not use."""


def rule_for(code: int, overrides: Mapping[int, Rule]) -> Rule | None:
    """The rule that counts for a code; None where nobody has one."""
    return overrides.get(code) or CATALOGUE.get(code) or PAPER_CODES.get(code)


def all_rules(overrides: Mapping[int, Rule]) -> list[Rule]:
    """Every code with the rule that counts, by code."""
    return [rule for _, rule in sorted(({**PAPER_CODES, **CATALOGUE} | dict(overrides)).items())]


_PARENTHESES: Final = re.compile(r"\(([^()]*)\)")
_RECOVERY: Final[Mapping[str, Verb]] = {
    "none": Verb.IGNORE,
    "gpu reset required": Verb.RESET_GPU,
    "gpu reset": Verb.RESET_GPU,
    "reset": Verb.RESET_GPU,
    "node reboot required": Verb.DRAIN_REBOOT,
    "node reboot": Verb.DRAIN_REBOOT,
    "reboot": Verb.DRAIN_REBOOT,
    "drain reboot": Verb.DRAIN_REBOOT,
    "drain p2p": Verb.DRAIN_RESET,
    "drain and reset": Verb.DRAIN_RESET,
    "drain reset": Verb.DRAIN_RESET,
}
"""What drivers say a device needs (NVML's recovery actions, nvidia-smi's words, and our own short ones)."""


def recovery_verb(words: str) -> Verb | None:
    """What a driver's recovery action asks for; None where it says nothing that is known."""
    return _RECOVERY.get(" ".join(words.replace("_", " ").split()).lower())


def followed_verb(text: str) -> Verb | None:
    """The state that the text of XID 154 names last in parentheses; None where it names none.

    "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)" asks to drain and reset.
    """
    named = _PARENTHESES.findall(text)
    return recovery_verb(named[-1]) if named else None
