import itertools

import pytest

from tenants.models import SlaTier
from tenants.policies.tiers import OBJECTIVES, TrafficClass, objectives_of


@pytest.mark.shows("R146")
def test_every_tier_has_thresholds_and_a_class_of_its_own() -> None:
    assert list(OBJECTIVES) == [tier.value for tier in SlaTier]
    assert [objectives_of(tier).traffic_class for tier in SlaTier] == list(TrafficClass)


def test_a_better_tier_is_better_in_everything() -> None:
    for better, worse in itertools.pairwise(OBJECTIVES.values()):
        assert better.traffic_class < worse.traffic_class
        assert 0 < better.ttft_p99_seconds < worse.ttft_p99_seconds
        assert better.latency_p99_seconds < worse.latency_p99_seconds
        assert worse.availability < better.availability < 1
    for objectives in OBJECTIVES.values():
        assert objectives.ttft_p99_seconds < objectives.latency_p99_seconds


def test_an_unknown_tier_is_the_least() -> None:
    assert objectives_of("tin") == objectives_of("bronze")
