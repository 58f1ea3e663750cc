"""The way of a version from draft to retired, and what it needs beside its memory."""

from typing import Any

import pytest

from gpupool.models import VersionState
from gpupool.policies.admission import ALLOWED, Rule, Stage, first_stage, missing, step_fault
from gpupool.policies.version_needs import VersionNeeds, fault

OFF, REQUIRED = Rule.OFF, Rule.REQUIRED
D, A, S, R = Stage.DRAFT, Stage.ADMITTED, Stage.SERVING, Stage.RETIRED


def test_the_table_has_every_state_of_a_row() -> None:
    assert {stage.value for stage in ALLOWED} == set(VersionState.values)


@pytest.mark.parametrize(
    ("before", "after", "rule", "admitted", "may"),
    [
        (D, A, REQUIRED, False, True),
        (A, S, REQUIRED, True, True),
        (S, R, REQUIRED, True, True),
        (R, S, REQUIRED, True, True),
        (A, D, REQUIRED, True, True),
        (D, S, REQUIRED, False, False),
        (R, S, REQUIRED, False, False),  # it served before this was asked for
        (S, D, REQUIRED, True, False),
        (S, A, REQUIRED, True, True),  # rolled back
        (A, S, REQUIRED, False, False),
        (R, D, REQUIRED, True, False),
        (D, S, OFF, False, True),
        (R, S, OFF, False, True),
        (S, D, OFF, False, False),
    ],
)
def test_the_way_of_a_version(before: Stage, after: Stage, rule: Rule, admitted: bool, may: bool) -> None:
    told = step_fault(before, after, rule=rule, admitted=admitted)
    assert (told is None) is may
    assert told is None or told.endswith(".")


def test_where_nothing_is_asked_a_version_serves_at_once() -> None:
    assert first_stage(OFF, has_artefact=True) is S
    assert first_stage(REQUIRED, has_artefact=True) is D
    assert first_stage(REQUIRED, has_artefact=False) is S  # somebody else's engine: its weights are not here
    assert step_fault(D, S, rule=REQUIRED, admitted=False, has_artefact=False) is None


@pytest.mark.shows("R74")
@pytest.mark.parametrize(
    ("rule", "root", "lacking"),
    [(OFF, True, 0), (REQUIRED, False, 2), (REQUIRED, True, 3)],
)
def test_what_is_asked_for(rule: Rule, root: bool, lacking: int) -> None:
    assert len(missing(manifest=False, card=False, signature=False, rule=rule, trusted_root=root)) == lacking
    assert missing(manifest=True, card=True, signature=True, rule=rule, trusted_root=root) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"devices": 0}, "devices"),
        ({"devices": 65}, "devices"),
        ({"host_memory_bytes": -1}, "host_memory_bytes"),
        ({"share": 0.0}, "share"),
        ({"share": 1.1}, "share"),
        ({"share": float("nan")}, "share"),
        ({"share": 0.5, "whole_device": True}, "share"),
        ({"priority": 2}, "priority"),
        ({"topology": "near"}, "topology"),
        ({"strategy": "all"}, "strategy"),
        ({"gpu_tag": "x" * 81}, "gpu_tag"),
        ({"gpu_tag": "a\nb"}, "gpu_tag"),
        ({"idle_sleep_seconds": 0.0}, "idle_sleep_seconds"),
        ({"device_seconds": float("inf")}, "device_seconds"),
        ({"isolation": {"sandbox": "paper"}}, "isolation"),
        ({"request_shape": {"batch": 0}}, "request_shape"),
        ({"request_shape": {"batch": True}}, "request_shape"),
        ({"request_shape": {"precision": "fp99"}}, "request_shape"),
        ({"request_shape": {"colour": 1}}, "request_shape"),
    ],
)
def test_needs_that_make_no_sense_are_named(change: dict[str, Any], field: str) -> None:
    found = fault(VersionNeeds(**change), device_kind="gpu")
    assert found is not None
    assert (found[0], found[1][-1]) == (field, ".")


def test_needs_that_make_sense_are_taken() -> None:
    shape = {"batch": 8, "sequence_length": 4096, "precision": "bf16"}
    assert fault(VersionNeeds(devices=8, share=0.5, gpu_tag="a100", request_shape=shape), device_kind="gpu") is None
    assert fault(VersionNeeds(), device_kind="cpu") is None
    assert fault(VersionNeeds(devices=2), device_kind="cpu") is not None
