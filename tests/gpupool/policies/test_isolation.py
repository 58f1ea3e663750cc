"""What a version asks for meets what a node has, or is refused with sentences."""

from typing import Any

import pytest

from gpupool.policies.isolation import (
    Claimed,
    Isolation,
    IsolationRefused,
    contradictions,
    host_limits,
    mps_limits,
    parse_isolation,
    refusals,
    too_many_clients,
)

GIB = 1 << 30
ALL = {name: {"available": True, "reason": ""} for name in ("bubblewrap", "gvisor", "cgroup", "mps")}
CLAIM = Claimed(on_nvidia=True, gpus=1, share=None, host_bytes=GIB)


def test_what_is_asked_is_read() -> None:
    assert parse_isolation({}) == Isolation()
    asked = {"sandbox": "bubblewrap", "cgroup": True, "cpu_cores": 2, "mps": True, "mps_clients": 3}
    assert parse_isolation(asked) == Isolation("bubblewrap", True, 2.0, True, 3)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"sandbox": "chroot"}, "sandbox is one of bubblewrap, gvisor"),
        ({"seccomp": True}, "has no member 'seccomp'"),
        ({"cgroup": "yes"}, "cgroup is true or false"),
        ({"cpu_cores": 1}, "ask for cgroup too"),
        ({"cgroup": True, "cpu_cores": 0}, "number of processor cores"),
        ({"mps_clients": 2}, "ask for mps too"),
        ({"mps": True, "mps_clients": 49}, "1 to 48"),
        ({"mps": True, "mps_clients": True}, "1 to 48"),
    ],
)
def test_what_means_nothing_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(IsolationRefused, match=words):
        parse_isolation(asked)


@pytest.mark.shows("R143")
@pytest.mark.parametrize("name", ["bubblewrap", "gvisor", "cgroup", "mps"])
def test_what_a_node_lacks_is_refused_with_its_reason(name: str) -> None:
    asked = Isolation(sandbox=name) if name in ("bubblewrap", "gvisor") else Isolation(**{name: True})  # type: ignore[arg-type]  # a flag
    assert refusals(asked, ALL) == ()
    (said,) = refusals(asked, {**ALL, name: {"available": False, "reason": "It is not installed."}})
    assert said.endswith("which its node lacks: It is not installed.")
    (unsaid,) = refusals(asked, {})
    assert "has not said" in unsaid


@pytest.mark.parametrize(
    ("asked", "claimed", "words"),
    [
        (Isolation(mps=True), Claimed(True, 0, None, 0), "has none"),
        (Isolation(mps=True), Claimed(False, 1, None, 0), "or others"),
        (Isolation(mps=True, sandbox="gvisor"), CLAIM, "gVisor does not pass on"),
        (Isolation(cgroup=True), Claimed(True, 1, None, 0), "host_memory_bytes"),
    ],
)
def test_what_no_node_could_ever_do_is_said(asked: Isolation, claimed: Claimed, words: str) -> None:
    (said,) = contradictions(asked, claimed)
    assert words in said
    assert contradictions(asked, CLAIM) == () or asked.sandbox == "gvisor"


@pytest.mark.shows("R92")
def test_half_of_the_multiprocessors_are_half_of_the_threads() -> None:
    limits = mps_limits(Isolation(mps=True), share=0.5, memory_bytes=4 * GIB)
    assert (limits.thread_percentage, limits.memory_bytes) == (50, 4 * GIB)


@pytest.mark.shows("P25")
def test_clients_of_one_instance_share_its_limit_and_are_counted() -> None:
    asked = Isolation(mps=True, mps_clients=4)
    limits = mps_limits(asked, share=0.5, memory_bytes=4 * GIB)
    assert (limits.thread_percentage, limits.memory_bytes) == (12, GIB)
    assert too_many_clients(asked, processes=4) is None
    assert "5 of its processes" in (too_many_clients(asked, processes=5) or "")
    assert too_many_clients(Isolation(), processes=99) is None


def test_a_tenth_of_a_claim_is_left_to_page_tables() -> None:
    hard, pressed = host_limits(2 * GIB)
    assert hard == 2 * GIB
    assert round(pressed / GIB, 3) == 1.8
