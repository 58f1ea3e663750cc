"""What agents notice, do and fail at is said in the reader's language: reasons, events and error codes."""

import re
from typing import Final

import pytest
from django.test import Client

from dashboard import fault_sentences, pool_words, reasons, refusals
from dashboard.reasons import ALL
from gpupool.policies import xid
from tests.dashboard.people import pool
from tests.dashboard.spoken import ROOT, spoken, with_places
from tests.factories import make_fine_tuning_job, make_tenant

AGENTS: Final = (
    "core/outbound.py",
    "gpupool/agent/actions.py",
    "gpupool/agent/artefacts.py",
    "gpupool/agent/device_memory.py",
    "gpupool/agent/engine.py",
    "gpupool/agent/guard.py",
    "gpupool/agent/isolation/launcher.py",
    "gpupool/agent/isolation/nodes.py",
    "gpupool/agent/isolation/watch.py",
    "gpupool/agent/life.py",
    "gpupool/agent/ports.py",
    "gpupool/agent/serving.py",
    "gpupool/agent/slumber.py",
    "gpupool/agent/staging.py",
    "gpupool/agent/supervisor.py",
    "gpupool/agent/tools.py",
    "gpupool/agent/kernel_log.py",
    "gpupool/agent/node.py",
    "gpupool/discovery/child.py",
    "gpupool/discovery/nvidia_smi.py",
    "gpupool/discovery/nvml.py",
    "gpupool/discovery/pci_source.py",
    "gpupool/discovery/snapshot.py",
    "gpupool/discovery/tool_source.py",
    "gpupool/discovery/tools.py",
    "gpupool/engines/llamacpp/gguf.py",
    "gpupool/engines/plugins.py",
    "gpupool/policies/adapter.py",
    "gpupool/policies/findings.py",
    "gpupool/policies/isolation.py",
    "gpupool/policies/node_reconcile.py",
    "gpupool/policies/oom_guard.py",
    "gpupool/policies/safetensors.py",
    "gpupool/policies/tenant_switch.py",
    "gpupool/reads/estimates.py",
    "gpupool/reads/healing.py",
    "gpupool/services/training_runs.py",
    "gpupool/training/folders.py",
    "gpupool/weights/files.py",
    "gpupool/weights/gguf.py",
    "gpupool/weights/headers.py",
    "gpupool/weights/safetensors.py",
    "gpupool/weights/verify.py",
)
"""What comes to pages as reasons, outcomes and events: of agents, of findings, of files, trainings and deliveries."""

AGENT_PARTS: Final = frozenset(
    {
        "GATEHOUSE_NODE_ADDRESS=%s is reached by nobody: use 127.0.0.1, or the node's own.",
        "NVIDIA-SMI has failed",
        "%s device %s",
        " or ",
        "A GPU of %s is on the PCI bus (%s), but %s",
        "its driver tells nothing of it: is %s installed?",
        "no driver is bound to it: load %s.",
        "%s %s HTTP/1.1\r\n",
        "%s %s of its processes %s asked to give memory back.",
        "%s %s, %s before.",
        "%s does not become %s",
        "%s still lists memory of its processes %s, which have ended. Nothing was reset for it.",
        "%s was %s and is %s.",
        "%s%s: %s says %s.",
        "%s: its text names no state (%s).",
        "%s: the driver asks for %s.",
        "Code %s, %s",
        "It has no process. Its weights %s.",
        "It has no process. Its weights are being read into the page cache.",
        "Its process has ended. Its devices do not have all of their memory back yet.",
        "The %s is not there any more.",
        "The adapter %s is registered.",
        "The engine %s while %s.",
        "The trainer ended %s; see its log.",
        "Training has started.",
        "XID %s, %s",
        "a detail of the double-bit error beside it.",
        "are in the page cache",
        "are to %s in the page cache",
        "by signal %s",
        "fallen off the bus",
        "it was over again with XID 162.",
        "its %s %s",
        "memory rows remapped for correctable errors",
        "memory rows remapped for uncorrectable errors",
        "retired memory pages",
        "the cleanup after XID %s.",
        "the row of the double-bit error beside it was recorded; its reset brings the new row.",
        "the row of the error beside it could not be remapped.%s",
        "there are no %s ports from %s",
        "there is nothing to wait for before a first start",
        "uncorrectable ECC errors",
        "uncorrectable ECC errors over its life",
        "with status %s",
    }
)
"""Of which some are put together, and some are for logs alone."""


def test_all_that_agents_say_is_known_to_the_pages() -> None:
    known = with_places((*ALL, *refusals.ALL))
    found = spoken(AGENTS)
    assert len(found) > 150
    # Errors within a sentence have no full stop of their own.
    missing = [one for one in found - AGENT_PARTS if not known & {one.strip(), f"{one}.", one.removeprefix("%s ")}]
    assert sorted(missing) == [], "list them in dashboard/fault_sentences.py, agent_sentences.py or file_sentences.py"
    assert found >= AGENT_PARTS
    assert len(set(ALL)) == len(ALL)


def test_every_error_code_of_the_catalogues_has_words() -> None:
    rules = [*xid.CATALOGUE.values(), *xid.PAPER_CODES.values()]
    assert {rule.meaning for rule in rules} | {"an error"} == set(fault_sentences.MEANINGS)
    assert {rule.note for rule in rules} - {"", "0x1"} == set(fault_sentences.NOTES)
    assert set(xid.Provenance) == set(pool_words.WHOSE_ANSWERS)


_KIND: Final = re.compile(r'(?:_notice|_event)\((?:\w+, )?"(\w+)"|(?:EVICTED|DROPPED|CLIENTS|UNSEEN): Final = "(\w+)"')
_SOURCE: Final = re.compile(r'source="(\w+)"')


def test_kinds_and_sources_of_what_agents_notice_have_words() -> None:
    text = "\n".join(
        path.read_text()
        for folder in ("agent", "discovery")
        for path in sorted((ROOT / "gpupool" / folder).rglob("*.py"))
    )
    kinds = {one or other for one, other in _KIND.findall(text)}
    assert len(kinds) > 10
    assert kinds <= set(pool_words.EVENT_KINDS)
    assert {*_SOURCE.findall(text)} <= set(pool_words.EVENT_SOURCES)


@pytest.mark.django_db
def test_error_codes_are_said_in_the_readers_language(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_sentences, "gettext", lambda text: f"≈{text}")
    rules = operator.get("/console/healing/", {"q": "preemptive"}).content.decode()
    assert "≈preemptive cleanup after an earlier error" in rules
    assert "≈correlate with the XID before it" in rules
    change = operator.get("/console/healing/rules/45/").content.decode()
    assert "≈preemptive cleanup after an earlier error" in change


@pytest.mark.django_db
def test_why_a_training_failed_is_said_in_the_readers_language(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "The trainer ended with status 1; see its log."
    make_fine_tuning_job(make_tenant(), pool().version, state="failed", error_message=told)
    monkeypatch.setattr(reasons, "gettext", lambda text: f"≈{text}")
    assert "≈The trainer ended with status 1" in operator.get("/console/training/").content.decode()
