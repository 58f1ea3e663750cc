"""Why the pool did what it did, in the reader's language: of instances, devices, nodes, webhooks and dry runs.

The pool's policies are pure and speak English; what they said is kept in rows, and read by the API as it is. Pages say
it in their language: whole sentences by ALL, what a device has against an instance by CLAUSES. Of several
sentences in a row each is said for itself. What stands nowhere here is shown as it was said.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Final

from django.conf import settings
from django.utils.translation import gettext, override
from django.utils.translation import gettext_noop as _

from core.sentences import DEEPEST, LONGEST, NEXT, Sentences, fits, unquoted
from dashboard import agent_sentences, fault_sentences, file_sentences, labels, node_sentences, refusals
from gpupool.policies.xid import recovery_verb
from tenants.policies import delivery_sentences

SENTENCES: Final = (
    # Placement.
    _("Its version does not say how many bytes one instance claims."),
    _("Its version asks for no device."),
    _("It waits for instances that are leaving: there is room once they have gone."),
    _("No device is known yet: no node agent has connected."),
    _("There is no %(kind)s among the %(count)s known devices."),
    _("No device can take it. %(devices)s."),
    _(
        "No %(count)s devices of one node are near enough to each other: the nearest are connected %(way)s, and its "
        "topology is required."
    ),
    _(
        "Node %(node)s has %(own)s, and one instance does not span devices of several vendors: it needs %(count)s of "
        "one."
    ),
    _("It needs %(count)s devices of one node; the most that can take it on any node are %(most)s."),
    _("Its tenant may hold %(count)s GPU, and would hold %(then)s: raise the limit, or stop some."),
    _("Its tenant may hold %(count)s GPUs, and would hold %(then)s: raise the limit, or stop some."),
    _("Its tenant may hold %(size)s of GPU memory, and would hold %(then)s: raise the limit, or stop something."),
    _("It waits for %(count)s to go, by a tenant's reservation."),
    _("It waits for %(count)s to go, by its higher priority."),
    _("It makes room for %(version)s."),
    _("The instance is %(state)s, not waiting for a place."),
    _("The devices are not all on one node."),
    _("Node %(node)s does not say how much memory its host has."),
    _("Node %(node)s is cordoned."),
    _("Node %(node)s is in maintenance."),
    _("%(device)s cannot be reached now."),
    _("%(device)s is divided: its parts can be claimed, it cannot."),
    _("%(device)s was taken out of service: %(why)s"),
    _("%(device)s has failed."),
    _("%(device)s is in a state that nobody can tell."),
    _("%(device)s is gone from its node."),
    _("Handed to node %(node)s."),
    # Dry runs and estimates.
    _("It would go to %(devices)s."),
    _("It would go to %(devices)s, connected %(way)s."),
    _("It borrows what is reserved for %(tenants)s."),
    _("Nobody says what it claims."),
    _("It claims %(claim)s of each device, and %(size)s are estimated: it may run out of memory."),
    _("Values of the cache are counted as f16: llama.cpp keeps them so without flash attention."),
    _("Flash attention is left to llama.cpp, so it is counted as off, which takes more."),
    _("The model was made for %(most)s tokens; the cache is counted for %(count)s."),
    _("The KV cache is counted for one sequence of full length, the least that serves; more serves more."),
    _("%(count)s of %(total)s layers are on devices; the rest is in the host's memory, and slower."),
    _(
        "%(count)s of %(total)s layers are on devices (n_gpu_layers %(asked)s); the rest is in the host's memory, and "
        "slower."
    ),
    _("%(count)s attention heads cannot be shared by %(devices)s devices: take a number of devices that divides them."),
    # The controller.
    _("%(version)s has %(count)s of %(total)s instances."),
    _("%(version)s has more than %(count)s instances."),
    _("%(version)s serves no more."),
    _("No instance of %(version)s is wanted any more."),
    _("Replaced after it failed: %(why)s"),
    _("It failed: %(why)s"),
    _("Its node is in maintenance."),
    _("Its agent is not heard any more."),
    _("Its node is silent and it does not answer either."),
    _("Its node is silent, but it answers."),
    _("Its node was restarted."),
    _("Its node was declared lost."),
    _("Its simulated node was removed."),
    _("Node %(node)s does not run it any more."),
    _("Its device was taken out: %(why)s"),
    _("%(version)s was never ready and failed, so %(other)s serves again, which was."),
    _("The last word of it: %(why)s"),
    # Tenants' own instances.
    _("A tenant acquired it."),
    _("It was released."),
    _("It had no request for a while."),
    _("It was idle, and another tenant's instance finds no place."),
    _("It was idle, and another tenant's instance wakes in its place."),
    _("More than %(most)s slept on its device, and of the least important it was used the longest ago."),
    _("Its node has not verified yet that it serves its tenant."),
    _("Its node holds it for one tenant; stop it to give it to others."),
    _("It is ended and its weights kept in memory."),
    _("It was about to wake."),
    _("It waits to wake."),
    # People.
    _("Stopped on the console."),
    _("Put to sleep on the console."),
    _("Staged on the console."),
    _("Woken on the console."),
    _("Released on the console."),
    _("Given back on the console."),
    # What engines answer.
    _("Waiting for the first health probe."),
    _("It does not answer: %(why)s."),
    _("It answers with something else: %(why)s."),
    _("Our part for %(engine)s cannot ask it: %(why)s."),
    _("It answers %(path)s with %(status)s."),
    _("It serves %(names)s, not %(name)s."),
    _("Its health answer takes more than %(seconds)s s."),
    _("It refuses our key (%(status)s from %(path)s): set the variable named as its credential."),
    # What agents say of engines that they look after.
    _("It was asked to stop."),
    _("It has no process."),
    _("Its weights are being read into the page cache."),
    _("Its weights are in the page cache."),
    _("Its weights are to %(share)s in the page cache."),
    _("Its weights are compared with their checksums."),
    _("Its process has ended."),
    _("Its devices do not have all of their memory back yet."),
    _("The engine ended while no agent looked after it."),
    _("The engine ended while %(state)s."),
    _("The engine exited with code %(code)s while %(state)s."),
    _("The engine was killed by %(name)s while %(state)s."),
    _("Its log says: %(why)s"),
    _("This node has no device %(device)s now."),
    _("The artefact %(uri)s cannot be read: %(why)s."),
    _("The checksum stage failed: %(why)s"),
    _("This is not a GGUF model that llama.cpp can load: %(why)s."),
    _("This GGUF file holds no tensors: it is not a model."),
    _("This GGUF file ends after its header: it was not copied whole."),
    _("The engine's process cannot be started: %(why)s."),
    _("The warm-up token did not come: %(why)s."),
    _("The warm-up request was answered with status %(status)s."),
    _("Every engine port of this node is taken by other programs."),
    _("The kernel ended it because it used all of its claim of host memory."),
    # Isolation.
    _("It asks for %(what)s, and its node has not said whether it has that."),
    _("It asks for %(what)s, which its node lacks: %(why)s"),
)  # fmt: skip

CLAUSES: Final = (
    _("it is a %(other)s, not a %(kind)s"),
    _("it is simulated"),
    _("it is real, and the version is a simulated one"),
    _("it is no longer there"),
    _("it is not there now"),
    _("its node is not reachable"),
    _("its node is in maintenance"),
    _("its node is cordoned"),
    _("it is divided: its parts can be claimed, it cannot"),
    _("it was taken out of service: %(why)s"),
    _("it has failed"),
    _("nobody can say how it is now"),
    _("it does not have the tag %(tag)s; it has %(tags)s"),
    _("it does not have the tag %(tag)s; it has none"),
    _("%(size)s of it are asked for, and the limit of memory (mem_limit_mb) is %(most)s"),
    _("it does not compute in %(precision)s"),
    _("the precision %(precision)s is not known"),
    _("an %(name)s does not compute in %(precision)s"),
    _("an %(name)s has %(size)s, and %(wanted)s are needed"),
    _("an %(name)s is for %(most)s tokens at 16 bits, not for %(asked)s in %(precision)s"),
    _("none of its memory may be read, written and computed in"),
    _("no region of its memory has %(size)s"),
    _("its node cannot isolate it so: %(why)s"),
    _("it has %(count)s clients of MPS, and %(more)s more are over %(most)s"),
    _("the device does not say how much memory it has"),
    _("it needs %(size)s, %(free)s can be claimed"),
    _("it needs %(share)s of the device's compute, %(free)s can be claimed"),
    _("another claim has the whole device"),
    _("the whole device is asked for, and others have claims on it"),
    _("nothing can be claimed of its host's memory now"),
    _("its node does not say how much memory its host has"),
    _("its host has %(free)s of memory to claim, %(size)s are needed beside it"),
    _("it is kept for the tenant %(tenant)s, who does not lend"),
    _("%(size)s are kept for the tenant %(tenant)s, who does not lend"),
    _("its tenant may hold %(most)s GPU and holds %(count)s"),
    _("its tenant may hold %(most)s GPUs and holds %(count)s"),
)
"""Sentences' ends, as filters of placement say them of one device."""

ALL: Final = (
    *SENTENCES,
    *node_sentences.SENTENCES,
    *fault_sentences.SENTENCES,
    *agent_sentences.SENTENCES,
    *file_sentences.SENTENCES,
    *delivery_sentences.SENTENCES,
)

WAYS: Final = (
    _("over NVSwitch"),
    _("over NVLink"),
    _("over NVLink-C2C"),
    _("over XGMI"),
    _("over Xe Link"),
    _("over one PCIe switch"),
    _("over a PCIe host bridge"),
    _("within one NUMA node"),
    _("across the sockets"),
    _("in a way that nobody tells"),
)
"""How devices are connected (gpupool.policies.topology.describe)."""

_OF_A_DEVICE: Final = _("%(device)s: %(why)s")
_OF_ALL: Final = _("Its claim")
_STOPPED: Final = _("%(sentence)s.")
_MORE: Final = _("and %(count)s more")
_BETWEEN: Final = _("; ")
_AMONG: Final = _(", ")
_SOME: Final = _("%(count)s of %(vendor)s")
_OF_REFUSALS: Final = frozenset(refusals.ALL) - frozenset(ALL)

_LABELLED: Final = re.compile(r"(?P<device>\S+(?: \S+)?): (?P<clause>.+)", re.DOTALL)


def reason_said(reason: str, *, deep: int = 0) -> str:
    """What was said, in the active language."""
    if not reason or len(reason) > LONGEST or deep > DEEPEST:
        return reason
    said = ""
    for told in _told(NEXT.split(reason), deep):
        said += told if not said or said.endswith(("。", "？")) else f" {told}"
    return said


def _told(texts: Sequence[str], deep: int) -> Iterator[str]:
    """Sentences that follow each other. What is not known may be part of the one before, as engines' logs are."""
    told = [_sentence(text, deep) for text in texts]
    first = 0
    while first < len(texts):
        end = next((nth for nth in range(first + 1, len(texts)) if told[nth] is not None), len(texts))
        alone = told[first] is not None and end == first + 1
        whole = None if alone or len(texts) == 1 else _sentence(" ".join(texts[first:end]), deep)
        if whole is not None:
            yield whole
        else:
            yield from (told[nth] or texts[nth] for nth in range(first, end))
        first = end


def clause_said(clause: str) -> str:
    """A sentence's end, in the active language."""
    return _clause(clause, 0) or clause


def reason_in_others(reason: str) -> dict[str, str]:
    """By language, where it is said otherwise there than it was: for frames, which readers of all languages share."""
    return dict(_in_others(reason)) if reason else {}


@lru_cache(maxsize=8192)
def _in_others(reason: str) -> tuple[tuple[str, str], ...]:
    found = []
    for language, _name in settings.LANGUAGES:
        with override(language):
            told = reason_said(reason)
        if told != reason:
            found.append((language, told))
    return tuple(found)


@cache
def _sentences() -> Sentences:
    """Those of refusals too: of all that a text may be, what says most is meant."""
    return Sentences(dict.fromkeys((*ALL, *refusals.ALL)))


@cache
def _clauses() -> Sentences:
    return Sentences(CLAUSES)


def _sentence(text: str, deep: int) -> str | None:
    """None for one that is not known."""
    labelled = _LABELLED.fullmatch(text.removesuffix(".")) if text.endswith(".") else None
    if labelled is not None and (clause := _clause(labelled["clause"], deep)) is not None:
        return gettext(_STOPPED) % {"sentence": _of_a_device(labelled["device"], clause)}
    return _found(text, _sentences(), deep)


def _clause(text: str, deep: int) -> str | None:
    return _found(text, _clauses(), deep)


def _found(text: str, sentences: Sentences, deep: int) -> str | None:
    found = sentences.found(text, fits=fits)
    if found is None:
        return None
    sentence, values = found
    told = gettext(sentence.text)
    if sentence.text in _OF_REFUSALS:
        # What lies within is not only of refusals: the files that an estimate reads have reasons too.
        return refusals.filled(sentence, told, values, within=lambda part: _why(part, deep + 1))
    if told == sentence.text:
        return text  # English is said as it was
    return told % {name: _value(name, value, deep) for name, value in unquoted(values).items()}


def _value(name: str, value: str, deep: int) -> str:
    match name:
        case "why" | "what":
            return _why(value, deep + 1)
        case "remedy":
            return labels.word("remedy", value)
        case "answer":
            return labels.word("answer", recovery_verb(value) or value)
        case "fault":
            return fault_sentences.fault_said(value)
        case "deed" if value in node_sentences.DEEDS:
            return gettext(value)
        case "state":
            return labels.word("instance", value)
        case "devices":
            return _devices(value)
        case "own":
            return gettext(_AMONG).join(_some(part) for part in value.split(", "))
        case "way" if value in WAYS:
            return gettext(value)
    return value


def _why(text: str, deep: int) -> str:
    """A sentence within a sentence; without its full stop where it came without one."""
    told = reason_said(text, deep=deep)
    if told != text or text.endswith("."):
        return told
    return reason_said(f"{text}.", deep=deep).removesuffix(".").removesuffix("。")


def _devices(text: str) -> str:
    """Devices with what each has against it; names alone stay as they are."""
    parts: list[str] = []
    for part in text.split("; "):
        if parts and not _LABELLED.fullmatch(part) and not re.fullmatch(r"and \d+ more", part):
            parts[-1] += f"; {part}"  # a clause of two halves
        else:
            parts.append(part)
    return gettext(_BETWEEN).join(_one_device(part) for part in parts)


def _one_device(part: str) -> str:
    if found := re.fullmatch(r"and (\d+) more", part):
        return gettext(_MORE) % {"count": found[1]}
    labelled = _LABELLED.fullmatch(part)
    return part if labelled is None else _of_a_device(labelled["device"], clause_said(labelled["clause"]))


def _some(part: str) -> str:
    """How many devices of one vendor."""
    count, of, vendor = part.partition(" of ")
    return gettext(_SOME) % {"count": count, "vendor": vendor} if of else part


def _of_a_device(device: str, clause: str) -> str:
    return gettext(_OF_A_DEVICE) % {"device": gettext(device) if device == _OF_ALL else device, "why": clause}
