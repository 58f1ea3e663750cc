"""Why the pool did something is said in the reader's language, of whatever it was put together."""

import re
from collections.abc import Iterator
from typing import Final

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.translation import get_language

from core.sentences import LONGEST, Sentences
from dashboard import node_sentences, reasons, refusals
from dashboard.reasons import ALL, CLAUSES, SENTENCES, WAYS, clause_said, reason_in_others, reason_said
from gpupool.models import DeviceEvent
from gpupool.policies import topology
from gpupool.policies.remedy import WORDS
from tests.dashboard.people import pool
from tests.dashboard.spoken import spoken, with_places


@pytest.fixture(autouse=True)
def _nothing_said_before() -> Iterator[None]:
    """What was said is kept for the whole process: translations that are made up here must not meet other tests."""
    reasons._in_others.cache_clear()
    yield
    reasons._in_others.cache_clear()


MODULES: Final = (
    "gpupool/policies/placement/filters.py",
    "gpupool/policies/placement/pick.py",
    "gpupool/policies/placement/rights.py",
    "gpupool/policies/placement/sets.py",
    "gpupool/policies/lease.py",
    "gpupool/policies/nearest.py",
    "gpupool/policies/reconcile.py",
    "gpupool/policies/asleep_pool.py",
    "gpupool/services/placing.py",
    "gpupool/reads/dry_run.py",
    "gpupool/controller/prober.py",
)
"""Whose every sentence is shown on pages, about instances and devices."""

PARTS: Final = frozenset(
    {
        " It borrows what is reserved for %s.",
        "%s of %s",
        ", connected %s",
        "; and %s more",
        "; it has %s",
        "; it has none",
        "It would go to %s%s.%s",
        "Its tenant may hold %s, and would hold %s: raise the limit, or stop some.",
        "No device can take it. %s%s.",
        "Nobody says what it claims. %s",
        "Node %s is %s.",
        "an %s is for %s x %s tokens at 16 bits, not for %s x %s in %s",
        "is in a state that nobody can tell",
        "it does not have the tag %s%s",
        "its tenant may hold %s and holds %s",
    }
)
"""What they put sentences together of: the tests below have these as people read them."""

FAULTS: Final = frozenset(
    {
        "a claim needs a positive number of bytes",
        "a share of a device is above 0 and at most 1",
        "an instance is placed on one device at least",
        "no device %s",
    }
)
"""Of a caller's, in errors that no page shows."""


def test_all_that_placement_says_is_known_to_the_pages() -> None:
    known, found = with_places((*SENTENCES, *CLAUSES)), spoken(MODULES)
    assert len(found) > 60
    missing = sorted(found - known - PARTS - FAULTS)
    assert missing == [], "list them in dashboard/reasons.py"
    assert len(set(SENTENCES)) == len(SENTENCES)
    assert found >= PARTS | FAULTS


PUT_TOGETHER: Final = (
    "No device can take it. node-1/GPU-0: it needs 4.0 GiB, 1.0 GiB can be claimed; node-1/GPU-1: it does not have the "
    "tag a; it has none; node-2/GPU-0: it does not have the tag a; it has b, c; and 4 more.",
    "It would go to node-1/GPU-0, node-1/GPU-1, connected over NVLink. It borrows what is reserved for Acme.",
    "It would go to node-1/GPU-0.",
    "Nobody says what it claims. The pool does not start TGI itself, so its memory is not estimated.",
    "Node node-1 has 1 of amd, 1 of nvidia, and one instance does not span devices of several vendors: it needs 2 of "
    "one.",
    "Its tenant may hold 1 GPU, and would hold 2: raise the limit, or stop some.",
    "Its tenant may hold 4 GPUs, and would hold 5: raise the limit, or stop some.",
    "Node node-1 is cordoned.",
    "GPU-0 is in a state that nobody can tell.",
    "GPU-0: it needs 4.0 GiB, 1.0 GiB can be claimed.",
    "It waits to wake. GPU-0: it was taken out of service: the fan hangs.",
    "Its claim: another claim has the whole device.",
    "Replaced after it failed: The engine exited with code 1 while loading. Its log says: no such file",
    "It has no process. Its weights are to 93% in the page cache.",
    "m v2 was never ready and failed, so m v1 serves again, which was. The last word of it: It answers /ready with 9.",
    "The engine llama.cpp is switched off.",
    "XID 31, GPU memory page fault (MMU) (look at the application first): NVIDIA XID catalogue says restart_app.",
    "XID 61, unused on Ampere and newer (older: microcontroller breakpoint) (cordon): NVIDIA XID catalogue says "
    "contact_support. So nothing new is placed on it until a person gives it back.",
    "XID 48, double-bit ECC error (ask: the vendor. They know): operator says ignore.",
    "Code 0x8, GPU hang (0x8, there called an XID 69 hang): design paper says reset_gpu. It came back after 2 x reset.",
    "XID 45, preemptive cleanup after an earlier error: the cleanup after XID 48.",
    "XID 64, row remap or page retirement failure: the row of the error beside it could not be remapped. A failed row "
    "remap comes back after every reset: the device is for its maker to replace.",
    "XID 63, row remap or page retirement event recorded: the row of the double-bit error beside it was recorded; its "
    "reset brings the new row.",
    "XID 171, DRAM detail of 48: a detail of the double-bit error beside it.",
    "XID 163, power smoothing disengaged: it was over again with XID 162.",
    "XID 154, recovery action changed: its text names no state (GPU-0).",
    "XID 154, recovery action changed: the driver asks for drain_reset.",
    "The device is gone: NVIDIA H100 is not listed any more. Its node was restarted since.",
    "It uses 97.0% of what its lease leaves it, 3 times in a row. 2 of its processes were asked to give memory back.",
    "It uses 97.0% of what its lease leaves it, 3 times in a row. 1 of its processes was asked to give memory back.",
    "Its agent ended it: It uses 97.0% of what its lease leaves it, 3 times in a row. It was asked to give memory "
    "back, and that did not help.",
    "It was asked to stop. GPU-0 still lists memory of its processes 4, 5, which have ended. Nothing was reset for it.",
    "Process 4 (python) still holds it.",
    "nvidia-smi --gpu-reset -i GPU-0 ended with code 3 and said: GPU-0 is in use. Try again.",
    "name was GPU-0 and is GPU-1.",
    "3 uncorrectable ECC errors over its life, 1 before.",
    "The artefact file:///m cannot be read: There is no file /m on this node.",
    "The trainer ended by signal 9; see its log.",
    "No NVIDIA GPU was found: the NVIDIA driver's library libnvidia-ml.so.1 was not found. A GPU of AMD is on the PCI "
    "bus (0000:03:00.0), but its driver tells nothing of it: is rocm-smi installed? No Intel GPU was found: none is on "
    "the PCI bus, and xpu-smi tells of none.",
    "NVIDIA's driver was asked for GPUs: The probe did not answer within 5 s and was killed.",
    "Its memory cannot be estimated: its config.json is not JSON.",
)


@pytest.mark.parametrize("reason", PUT_TOGETHER)
def test_what_is_put_together_is_said_part_by_part_and_in_english_as_it_was(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    assert reason_said(reason) == reason
    spoken: list[str] = []

    def translated(text: str) -> str:
        spoken.append(text)
        return f"<{text}>"

    monkeypatch.setattr(reasons, "gettext", translated)
    monkeypatch.setattr("dashboard.refusals.gettext", translated)
    told = reason_said(reason)
    assert all(one in told for one in re.findall(r"GPU-\d|node-\d|\d\.\d GiB|no such file|the fan hangs|\d+%", reason))
    # Taken out with its brackets, nothing is left of it but what joins the parts.
    while (inner := re.sub(r"<[^<>]*>", "", told)) != told:
        told = inner
    assert re.fullmatch(r"[\s.]*", told), told
    assert spoken


@pytest.mark.parametrize(
    ("clause", "sentence"),
    [
        ("it does not have the tag a; it has none", "it does not have the tag %(tag)s; it has none"),
        ("it does not have the tag a; it has b, c", "it does not have the tag %(tag)s; it has %(tags)s"),
        ("its tenant may hold 1 GPU and holds 1", "its tenant may hold %(most)s GPU and holds %(count)s"),
        ("its tenant may hold 2 GPUs and holds 3", "its tenant may hold %(most)s GPUs and holds %(count)s"),
        (
            "an A100 is for 256 x 4096 tokens at 16 bits, not for 512 x 8 in fp16",
            "an %(name)s is for %(most)s tokens at 16 bits, not for %(asked)s in %(precision)s",
        ),
        ("its node cannot isolate it so: It asks for MPS, and its node has not said whether it has that",
         "its node cannot isolate it so: %(why)s"),
    ],
)  # fmt: skip
def test_what_a_device_has_against_an_instance_is_said_too(
    monkeypatch: pytest.MonkeyPatch, clause: str, sentence: str
) -> None:
    assert clause_said(clause) == clause
    asked: list[str] = []

    def translated(text: str) -> str:
        asked.append(text)
        return f"≈{text}"

    monkeypatch.setattr(reasons, "gettext", translated)
    assert clause_said(clause).startswith("≈")
    assert asked[0] == sentence


NODES: Final = (
    "gpupool/agent/capabilities.py",
    "gpupool/agent/isolation/cgroup.py",
    "gpupool/policies/healing.py",
    "gpupool/policies/way_back.py",
    "gpupool/services/healing.py",
)
NODE_PARTS: Final = frozenset(
    {
        "it exits with code %s",
        "runsc version ",
        'echo 0 > "$1/cgroup.procs" && shift && exec "$@"',
        "event %s is far ahead of %s, the last one that is kept",
    }
)
"""In errors and commands, and what follows "cannot … here"."""


def test_all_that_nodes_lack_and_healing_decides_is_known_to_the_pages() -> None:
    known = with_places((*SENTENCES, *node_sentences.SENTENCES))
    found = spoken(NODES)
    assert len(found) > 60
    # Decisions go on from the reason that they were made for.
    missing = [one for one in found - NODE_PARTS if not known & {one.strip(), one.strip().removeprefix("%s ")}]
    assert sorted(missing) == [], "list them in dashboard/node_sentences.py"
    assert set(WORDS.values()) == set(node_sentences.DEEDS)


def test_a_decision_of_healing_is_said_with_the_remedys_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken_ones = "It came back after 2 x restart_app. So the device is drained and reset."
    assert reason_said(spoken_ones) == spoken_ones
    monkeypatch.setattr(reasons, "gettext", lambda text: f"<{text}>")
    assert reason_said(spoken_ones) == (
        "<It came back after 2 x Restart the engine.> <So <the device is drained and reset>.>"
    )


def test_no_sentence_is_taken_for_another() -> None:
    for sentence in (*ALL, *refusals.ALL):
        said = re.sub(r"%\(\w+\)s", "x7", sentence)
        first = next(one for one in reasons._sentences().like(said) if one.values_in(said) is not None)
        assert with_places([first.text]) == with_places([sentence])


EXITED: Final = "The engine exited with code 1 while loading."
LOG: Final = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
    "the engine."
)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (f"{EXITED} Its log says: {LOG}", f"<The engine exited with code 1 while Loading.> <Its log says: {LOG}>"),
        (
            f"Replaced after it failed: {EXITED} Its log says: {LOG} It may be too large. Ask.",
            "<Replaced after it failed: <The engine exited with code 1 while Loading.>> "
            f"<Its log says: {LOG} It may be too large. Ask.>",
        ),
        (
            f"{EXITED} Its log says: {LOG} It has no process.",
            f"<The engine exited with code 1 while Loading.> <Its log says: {LOG}> <It has no process.>",
        ),
        (f"{EXITED} It was bad luck.", "<The engine exited with code 1 while Loading.> It was bad luck."),
        ("It answers /ready with 503. Later it did.", "<It answers /ready with 503.> Later it did."),
        ("The warm-up token did not come: No. It did not.", "<The warm-up token did not come: No. It did not.>"),
    ],
)
def test_the_last_words_of_a_log_may_have_full_stops_and_are_no_part_of_the_sentence_before(
    monkeypatch: pytest.MonkeyPatch, reason: str, said: str
) -> None:
    monkeypatch.setattr(reasons, "gettext", lambda text: f"<{text}>")
    monkeypatch.setattr("dashboard.refusals.gettext", lambda text: f"<{text}>")
    assert reason_said(reason) == said


def test_a_refusal_is_said_by_the_sentence_that_fits_and_not_by_a_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"%(engine)s does not start again.": "%(engine)s: never", "Ask: %(why)s again.": "ask for %(why)s"}
    monkeypatch.setattr(reasons, "_OF_REFUSALS", words)
    for module in (reasons, refusals):
        monkeypatch.setattr(module, "_sentences", lambda: Sentences(words))
        monkeypatch.setattr(module, "gettext", lambda text: words[text])
    assert reason_said("vLLM does not start again.") == "vLLM: never"
    assert reason_said("Ask: it does not start again.") == "ask for it does not start"


def test_a_reason_within_a_refusal_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "gettext", lambda text: f"<{text}>")
    monkeypatch.setattr(refusals, "gettext", lambda text: text)
    assert reason_said("Its files cannot be read here: There is no file /m on this node.") == (
        "<Its files cannot be read here: <There is no file /m on this node.>.>"
    )


@pytest.mark.parametrize(
    "text", ["It failed: " * 300, "It failed: " + "A b. " * 700, ". It claims for, not in: of" * 200]
)
def test_what_is_endless_or_deep_is_shown_and_does_not_hold_anybody_up(text: str) -> None:
    assert len(text) > LONGEST
    assert (reason_said(text), refusals.said(text)) == (text, text)
    assert reason_said(text[: LONGEST - 100])
    assert refusals.said(text[: LONGEST - 100])


def test_every_way_that_devices_are_connected_has_words() -> None:
    assert {topology.describe(score) for score in (*topology.LEVELS.values(), 0.0)} <= set(WAYS)


def test_what_nobody_knows_is_shown_as_it_was_said() -> None:
    for text in ("", "OOM: 3 of 4.", "Traceback (most recent call last): boom. It hurts.", "a: b"):
        assert reason_said(text) == text
        assert reason_in_others(text) == {}


def test_frames_carry_a_reason_in_each_language_that_says_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        reasons, "gettext", lambda text: f"≈{text}" if (get_language() or "").startswith("zh") else text
    )
    reason = "Its node is in maintenance."
    assert reason_in_others(reason) == {"zh-hans": f"≈{reason}"}


@pytest.mark.django_db
def test_pages_say_reasons_in_the_readers_language(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pool(state="requested")
    made.instance.reason = "Its node is in maintenance."
    made.instance.save()
    made.version.state_reason = "m v2 was never ready and failed, so m v1 serves again, which was."
    made.version.memory_bytes = 200 << 30
    made.version.save()
    monkeypatch.setattr(reasons, "gettext", lambda text: f"≈{text}")
    monkeypatch.setattr(refusals, "gettext", lambda text: f"≈{text}")
    for address in ("/console/instances/", f"/console/instances/{made.instance.pk}/", "/console/routing/"):
        assert "≈Its node is in maintenance." in operator.get(address).content.decode(), address
    made.device.node.facts = {"no_gpu_reason": "No NVIDIA GPU was found: this user may not talk to the NVIDIA driver."}
    made.device.node.save()
    node = operator.get(f"/console/nodes/{made.device.node.pk}/").content.decode()
    assert "Why there is no GPU" in node
    assert "≈No NVIDIA GPU was found: ≈this user may not talk to the NVIDIA driver" in node
    version = operator.get(f"/console/versions/{made.version.pk}/").content.decode()
    assert "≈m v2 was never ready" in version
    assert "≈It cannot be estimated here" in version
    fit = operator.get(f"/console/fit/?version={made.version.pk}").content.decode()
    for number, decided in enumerate((True, False)):
        DeviceEvent.objects.create(
            node=made.device.node, boot_id="b", sequence=number, source="nvml", kind="xid", code=13, decided=decided,
            at=timezone.now(), verdict="Its node was restarted since.",
        )  # fmt: skip
    events = operator.get("/console/healing/events/").content.decode()
    assert events.count("≈Its node was restarted since.") == 2
    assert events.count("Graphics engine exception") == 2
    assert "≈No device can take it." in fit
    assert "≈it needs" in fit.lower()
