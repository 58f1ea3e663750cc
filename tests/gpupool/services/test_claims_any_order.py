"""Whatever happens to a pool, in whatever order: no device over its size, no claim without a holder, and a way back."""

import pytest
from django.db import transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpupool import services
from gpupool.models import Device, Instance, InstanceState, Lease, Node
from gpupool.stream.messages import InstanceFact, Observed
from tenants.actor import SYSTEM
from tenants.services import InvalidInput
from tests.gpupool.pool import a_device, a_hello, a_version, an_online_node

SIZE = 10
_STEPS = st.tuples(
    st.sampled_from(
        ["place", "ready", "failed", "gone", "forgotten", "stop", "cut", "hello", "reboot", "lost", "sweep", "vanish"]
    ),
    st.integers(0, 2),
)


class Drill:
    """One node with one device of ten bytes, and an agent that says what it is told to say."""

    def __init__(self) -> None:
        self.node_id = an_online_node(a_device("gpu-0", memory_bytes=SIZE)).pk
        self.device_id = Device.objects.get().pk
        self.versions = [a_version(f"m{size}", memory_bytes=size) for size in (3, 5, 10)]
        self.boots = 1
        self.highest_token = 0

    def do(self, step: str, number: int) -> None:
        match step:
            case "place":
                instance = services.request_instance(self.versions[number].pk, actor=SYSTEM)
                lease = services.claim_and_place(instance.pk, self.device_id, actor=SYSTEM)
                if isinstance(lease, Lease):
                    assert lease.fencing_token > self.highest_token
                    self.highest_token = lease.fencing_token
            case "ready" | "failed":
                self.say({number: step})
            case "gone":
                self.say({number: "stopped"})
            case "forgotten":
                self.say({})
            case "vanish":
                self.say({}, devices=False)
            case "stop":
                for instance in self.live()[number : number + 1]:
                    services.stop_instance(instance.pk, actor=SYSTEM)
            case "cut":
                services.mark_node_unreachable(self.node_id, reason="silent", actor=SYSTEM)
                for instance in self.live():
                    services.mark_instance_unknown(instance.pk, reason="silent", actor=SYSTEM)
            case "hello" | "reboot":
                self.boots += step == "reboot"
                hello = a_hello("node-1", a_device("gpu-0", memory_bytes=SIZE), boot_id=str(self.boots))
                services.apply_hello(self.node_id, hello)
            case "lost":
                try:
                    services.declare_node_lost(self.node_id, actor=SYSTEM)
                except InvalidInput:
                    assert Node.objects.get().state == "online"
            case "sweep":
                assert services.sweep_claims(actor=SYSTEM) == 0  # no way out has forgotten a claim

    def live(self) -> list[Instance]:
        return list(Instance.objects.exclude(state=InstanceState.STOPPED).order_by("pk"))

    def say(self, states: dict[int, str], *, devices: bool = True) -> None:
        """A report about the live instances of these numbers, as their agent would send it."""
        session_id = Node.objects.get().session_id
        if session_id is None:
            return
        facts = [
            InstanceFact(
                instance_id=instance.pk,
                state=states[number],
                lease_id=instance.lease_id or 0,
                fencing_token=instance.fencing_token,
                pid=7 if states[number] == "ready" else None,
                port=21000,
            )
            for number, instance in enumerate(self.live())
            if number in states
        ]
        there = [a_device("gpu-0", memory_bytes=SIZE)] if devices else []
        services.apply_observed(self.node_id, session_id, Observed(sequence=1, devices=there, instances=facts))

    def check(self) -> None:
        active = Lease.objects.filter(released_at=None)
        assert (active.aggregate(total=Sum("memory_bytes"))["total"] or 0) <= SIZE
        holders = {lease.holder.removeprefix("instance:") for lease in active}
        assert holders == {str(instance.pk) for instance in self.live() if instance.node_id is not None}

    def come_to_rest(self) -> None:
        """Everything is told to stop, the agent returns and says that nothing runs: nothing is claimed any more."""
        for instance in self.live():
            services.stop_instance(instance.pk, actor=SYSTEM)
        self.do("hello", 0)
        self.say(dict.fromkeys(range(len(self.live())), "stopped"))
        assert self.live() == []
        assert not Lease.objects.filter(released_at=None).exists()


@pytest.mark.django_db
@pytest.mark.shows("P1", "P12", "P15")
@given(script=st.lists(_STEPS, max_size=20))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_no_order_of_events_over_claims_a_device_or_loses_a_claim(script: list[tuple[str, int]]) -> None:
    with transaction.atomic():
        drill = Drill()
        for step, number in script:
            drill.do(step, number)
            drill.check()
        drill.come_to_rest()
        transaction.set_rollback(True)
