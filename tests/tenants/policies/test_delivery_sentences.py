"""All that keeps a message from being delivered is listed, and said in the words of whoever reads it."""

from typing import Final

from core.sentences import PLACE
from tenants.policies.delivery_sentences import ADDRESSES, SENTENCES, delivery_said
from tests.dashboard.spoken import spoken, with_places

MODULES: Final = ("core/outbound.py", "tenants/services/senders.py", "tenants/services/deliveries.py")
OTHERS: Final = frozenset({"%s %s HTTP/1.1\r\n", "The mail server failed: %s."})
"""A request's head, and what no page and no mail tells: why a mail was not sent."""


def test_all_that_deliveries_say_is_listed() -> None:
    known, found = with_places((*SENTENCES, *ADDRESSES)), spoken(MODULES)
    assert len(found) > 20
    assert sorted(found - known - OTHERS) == [], "list them in tenants/policies/delivery_sentences.py"
    assert found >= OTHERS


def test_each_is_found_again_also_within_the_reason_that_a_webhook_was_disabled_for() -> None:
    for sentence in (*SENTENCES, *ADDRESSES):
        said = PLACE.sub("7", sentence)
        assert delivery_said(said, lambda text: f"<{text}>") == f"<{said}>"
        within = f"Every attempt failed for 5 days, the last with: {said}"
        assert delivery_said(within, lambda text: f"<{text}>").endswith(f"the last with: <{said}>>")


def test_what_is_endless_or_not_known_stays_as_it_was_said() -> None:
    endless = "Every attempt failed for 5 days, the last with: " * 20 + "It answered 500."
    for reason in ("", "It hurts.", endless, endless * 10):
        assert len(delivery_said(reason, str)) == len(reason)
