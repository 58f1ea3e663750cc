"""The error catalogue: every code's verb, whose word it is, and what each verb is done as."""

import csv
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from gpupool.policies.findings import Event, find, near
from gpupool.policies.remedy import HARDWARE, NEXT, REMEDY_OF, STRENGTH, Remedy
from gpupool.policies.xid import CATALOGUE, PAPER_CODES, Provenance, Rule, Verb, all_rules, followed_verb, rule_for

NODE, DEVICE = UUID(int=1), UUID(int=2)
SHARED: Final = Path(__file__).resolve().parents[4] / "shared" / "data"


def an_event(number: int, code: int | None = None, *, kind: str = "xid", at: float = 100.0, text: str = "",
             **data: str) -> Event:  # fmt: skip
    return Event(UUID(int=1000 + number), NODE, DEVICE, kind, at, code, text, data)


def remedy_of(event: Event, *others: Event, overrides: dict[int, Rule] | None = None) -> Remedy:
    return find(event, near(event, [event, *others]), overrides or {}).remedy


@pytest.mark.shows("R64")
def test_nvidias_catalogue_is_asked_before_the_papers_codes_and_an_operator_before_both() -> None:
    reset = rule_for(0x08, {})
    assert reset is not None
    assert (reset.verb, reset.provenance) == (Verb.RESET_GPU, Provenance.PAPER)
    assert rule_for(0x01, {}) is PAPER_CODES[1]
    verify = rule_for(0x1A, {})
    assert verify is not None
    assert REMEDY_OF[verify.verb] is Remedy.ISOLATE
    # NVIDIA answers 69, which the paper calls a hang, with a restart of the application.
    assert rule_for(69, {}) is CATALOGUE[69]
    own = Rule(69, "GPU hang", Verb.RESET_GPU, provenance="runbook 12")
    assert rule_for(69, {69: own}) is own
    assert rule_for(7777, {}) is None
    told = {rule.code: rule.provenance for rule in all_rules({69: own})}
    assert (told[69], told[48], told[8]) == ("runbook 12", Provenance.NVIDIA, Provenance.PAPER)


@pytest.mark.skipif(not SHARED.exists(), reason="the catalogue that ours was read from is not here")
def test_the_table_is_the_catalogue_row_by_row() -> None:
    with (SHARED / "xid.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert {int(row["xid"]) for row in rows} == set(CATALOGUE)
    for row in rows:
        rule = CATALOGUE[int(row["xid"])]
        assert (rule.meaning, rule.verb, rule.note) == (row["meaning"], row["action"], row["note"] or "")


def test_every_verb_has_an_action_and_every_action_a_strength_and_a_next_one() -> None:
    assert set(REMEDY_OF) == set(Verb)
    assert set(NEXT) == set(STRENGTH) == set(Remedy)
    for remedy in Remedy:
        assert remedy in (Remedy.CORDON,) or STRENGTH[NEXT[remedy]] >= STRENGTH[remedy]


@pytest.mark.parametrize(
    ("text", "verb"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", Verb.DRAIN_RESET),
        ("GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)", Verb.RESET_GPU),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", Verb.DRAIN_REBOOT),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", Verb.IGNORE),
        ("GPU recovery action changed", None),
        ("GPU recovery action changed to (Something New)", None),
    ],
)
def test_the_text_of_xid_154_is_followed(text: str, verb: Verb | None) -> None:
    assert followed_verb(text) is verb
    wanted = Remedy.NOTE if verb is None else REMEDY_OF[verb]
    assert remedy_of(an_event(1, 154, text=text)) is wanted


@pytest.mark.skipif(not SHARED.exists(), reason="the collected kernel log lines are not here")
def test_collected_lines_of_xid_154_are_followed() -> None:
    lines = (SHARED / "gpu-samples" / "kernel-log" / "xid_lines_collected.tsv").read_text().splitlines()
    found = [followed_verb(line.rpartition(": 154,")[2]) for line in lines if ": 154," in line]
    # Worked out by reading: "to 0x4 (Drain and Reset)" once, "to 0x1 (GPU Reset Required)" three times.
    assert sorted(verb for verb in found if verb) == [Verb.DRAIN_RESET, *[Verb.RESET_GPU] * 3]


def test_errors_that_belong_together_are_seen_together() -> None:
    double, cleanup, remapped, failed = an_event(1, 48), an_event(2, 45), an_event(3, 63), an_event(4, 64)
    assert remedy_of(double) is Remedy.RESET
    assert remedy_of(cleanup, double) is Remedy.NOTE
    assert "after XID 48" in find(cleanup, [double], {}).reason
    assert remedy_of(remapped, double) is Remedy.NOTE
    assert remedy_of(failed) is Remedy.RESET
    # A row that could not be remapped beside the error that needs it: for the maker, whichever is told last.
    assert remedy_of(failed, double) is remedy_of(double, failed) is remedy_of(remapped, failed) is Remedy.CORDON
    assert remedy_of(an_event(5, 172), double) is remedy_of(an_event(6, 171), double) is Remedy.NOTE
    assert remedy_of(an_event(7, 172)) is Remedy.RESET  # 48 itself was not heard
    assert remedy_of(an_event(8, 163), an_event(9, 162)) is remedy_of(an_event(9, 162)) is Remedy.NOTE
    later = an_event(10, 64, at=100.0 + 3600)
    assert remedy_of(later, double) is Remedy.RESET  # an hour apart is no group


@pytest.mark.parametrize(
    ("event", "remedy"),
    [
        (an_event(1, None, kind="ecc", counter="corrected"), Remedy.NOTE),
        (an_event(1, None, kind="ecc", counter="uncorrected"), Remedy.RESET),
        (an_event(1, None, kind="remap", state="pending"), Remedy.NOTE),
        (an_event(1, None, kind="remap", state="failed"), Remedy.RESET),
        (an_event(1, None, kind="recovery_action", to="reset"), Remedy.RESET),
        (an_event(1, None, kind="recovery_action", to="drain_reset"), Remedy.DRAIN_RESET),
        (an_event(1, None, kind="recovery_action", to="none"), Remedy.NOTE),
        (an_event(1, None, kind="recovery_action", text="Drain P2P"), Remedy.DRAIN_RESET),
        (an_event(1, None, kind="ecc", severity="uncorrectable"), Remedy.RESET),
        (an_event(1, None, kind="lost", text="NVRM: GPU has fallen off the bus."), Remedy.REBOOT),
        (an_event(1, None, kind="lost", text="it is not listed any more"), Remedy.ISOLATE),
        (an_event(1, None, kind="sxid"), Remedy.NOTE),
        (an_event(1, None, kind="evicted", text="It grew."), Remedy.REBUILD),
        (an_event(1, None, kind="verify", text="sha256 differs"), Remedy.ISOLATE),
        (an_event(1, 157), Remedy.CORDON),
        (an_event(1, 43), Remedy.NOTE),
        (an_event(1, 79), Remedy.REBOOT),
    ],
)
def test_other_sources_mean_what_the_catalogue_means(event: Event, remedy: Remedy) -> None:
    assert remedy_of(event) is remedy


@pytest.mark.shows("R65")
def test_an_error_that_nobody_knows_rebuilds_the_instance() -> None:
    finding = find(an_event(1, 7777), [], {})
    assert (finding.remedy, finding.known, finding.provenance) == (Remedy.REBUILD, False, Provenance.DEFAULT)
    assert "in no catalogue" in finding.reason
    assert Remedy.REBUILD not in HARDWARE
