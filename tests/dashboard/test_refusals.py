"""Refusals that people on a page can meet are listed, and said in their language."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from django.test import Client

from dashboard import document_sentences, labels, reasons, refusals
from dashboard.refusals import SENTENCES, said
from tenants.models import TenantRole, User, Webhook
from tests.dashboard.people import tenant
from tests.dashboard.spoken import spoken, with_places

ROOT: Final = Path(__file__).parents[2]
SERVICES: Final = ("tenants/services", "gpupool/services", "gateway/services", "dashboard/services")

API_MODULES: Final[Mapping[str, str]] = {
    "tenants/services/access_tokens.py": "pages only delete access tokens",
    "tenants/services/adjustments.py": "credits and charges are booked by the API",
    "tenants/services/configuration.py": "an earlier configuration is brought back by the API",
    "tenants/services/erasure.py": "people and tenants are erased by the API",
    "tenants/services/issuers.py": "token issuers are kept by the API",
    "tenants/services/replay.py": "limits are tried on past use by the API",
    "tenants/services/spent_keys.py": "spent keys are deleted at the start",
    "gpupool/services/adapters.py": "adapters are registered by the API",
    "gpupool/services/power_limit.py": "power limits are set by the API",
    "gpupool/services/simulated.py": "simulated nodes are removed by a command",
    "gpupool/services/training_files.py": "training files are uploaded by the API",
    "gpupool/services/training_jobs.py": "trainings are started by the API",
}
"""Services that no page calls, and who does."""

API_SENTENCES: Final[Mapping[str, str]] = {
    "Actions are some of %s, or *.": "the form offers choices",
    "Actions are some of %s.": "the form offers choices",
    "It is allow or deny.": "pages only allow",
    "A grant is a key's or a subject's, not both.": "pages grant to tenants",
    "There is no such key in this tenant.": "pages grant to tenants",
    "A role is one of %s.": "the form offers choices",
    "A role in a tenant is one of %s.": "the form offers choices",
    "A platform role is superuser, operator, read_only or empty.": "the form offers choices",
    "A platform role is superuser, operator or read_only, in no tenant.": "the form offers choices",
    "A key has no such field, or it cannot be changed.": "forms name the fields",
    "Scopes are some of %s.": "the form offers choices",
    "%s is no ISO 4217 code of a currency, such as USD.": "a setting, checked at the start",
    "Events are some of %s.": "the form offers choices",
    "A kind is one of %s.": "the form offers choices",
    "A tier is one of %s.": "the form offers choices",
}
"""Refusals of services that pages do call, and why no page can meet these."""


def _text(message: ast.expr) -> str | None:
    """A literal with %s in its places; None for a message that comes from elsewhere."""
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "%s" for part in parts)
        case _:
            return None


def _refused() -> Iterator[tuple[str, str]]:
    """Modules and the sentences in them."""
    for folder in SERVICES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                place = {"InvalidInput": 1, "Conflict": 0}.get(node.func.id)
                if place is None or len(node.args) <= place:
                    continue
                text = _text(node.args[place])
                if text is not None:
                    yield str(path.relative_to(ROOT)), text


def test_every_refusal_that_a_page_can_meet_is_listed() -> None:
    listed = {re.sub(r"%\(\w+\)s", "%s", sentence) for sentence in SENTENCES}
    found = [*_refused()]
    assert len(found) > 150
    missing = [
        (module, text)
        for module, text in found
        if text not in listed and module not in API_MODULES and text not in API_SENTENCES
    ]
    assert missing == [], "list them in dashboard/refusals.py, or say here why no page meets them"
    assert len(set(SENTENCES)) == len(SENTENCES)


def test_what_only_the_api_meets_is_still_refused_and_by_the_api_alone() -> None:
    found = [*_refused()]
    listed = {re.sub(r"%\(\w+\)s", "%s", sentence) for sentence in SENTENCES}
    assert API_MODULES.keys() <= {module for module, _ in found}
    assert API_SENTENCES.keys() <= {text for _, text in found}
    assert API_SENTENCES.keys() & listed == set()


DOCUMENTS: Final = (
    "gpupool/policies/manifest.py",
    "gpupool/policies/model_card.py",
    "gpupool/policies/plain_yaml.py",
    "gpupool/policies/sbom.py",
    "gpupool/weights/signature.py",
    "gpupool/engines/llamacpp/launch.py",
    "gpupool/engines/arguments.py",
)
"""Whose every sentence is about what people paste into forms."""

PARTS: Final = frozenset(
    {
        " in line %s",
        " and the file's %s.",
        "This is not YAML%s: %s.",
        "%s lacks sampling_share: %s.",
        "The bundle is of something else: it signs SHA-256 %s, the manifest's is %s",
        "a character is not allowed",
    }
)
"""Of which some are put together."""


def test_all_that_is_wrong_with_what_people_paste_is_listed() -> None:
    listed = with_places((*SENTENCES, *document_sentences.SENTENCES, *reasons.SENTENCES))
    found = spoken(DOCUMENTS)
    assert len(found) > 70
    missing = sorted(found - listed - PARTS)
    assert missing == [], "list them in dashboard/document_sentences.py"
    assert found >= PARTS


def test_a_cards_part_and_what_it_lacks_are_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "gettext", lambda text: f"<{text}>")
    told = said("Data set 2 (wiki) lacks sampling_share: its share of the training's samples, 0 to 1.")
    assert told == ("<<Data set 2 (wiki)> lacks sampling_share: <its share of the training's samples, 0 to 1>.>")
    assert said("This is not YAML in line 3: mapping values are not allowed here.").startswith("<This is not YAML in ")
    assert said("The card has no member 'x'.") == "<<The card> has no member x.>"


def test_the_sentence_that_says_most_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def told(text: str) -> str:
        asked.append(text)
        return text

    monkeypatch.setattr(refusals, "gettext", told)
    for message in ("An amount is a whole number from 1 to 9.", "batch is a whole number from 1 to 9."):
        assert said(message) == message
    assert asked == [
        "An amount is a whole number from 1 to %(most)s.",
        "%(name)s is a whole number from 1 to %(most)s.",
    ]


def test_states_and_sentences_within_a_sentence_are_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    chinese = {
        "It is %(state)s already.": "其状态已是“%(state)s”。",
        "%(why)s Switch it on first.": "%(why)s请先启用。",
        "The engine %(engine)s is switched off.": "引擎 %(engine)s 已停用。",
    }
    monkeypatch.setattr(refusals, "gettext", lambda text: chinese.get(text, text))
    monkeypatch.setitem(refusals._STATES, "approved", "已批准")
    assert said("It is approved already.") == "其状态已是“已批准”。"
    assert said("The engine vLLM is switched off. Switch it on first.") == "引擎 vLLM 已停用。请先启用。"


def test_metrics_and_windows_within_a_sentence_have_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "gettext", lambda text: f"<{text}>")
    told = said("A limit of money is by day, month.")
    assert told == f"<A limit of Money is by {labels.word('window', 'day')}<, >{labels.word('window', 'month')}.>"


def test_nobody_reads_a_sentence_unknown_here_changed() -> None:
    assert said(json.dumps({"what": "this is"})) == '{"what": "this is"}'


@pytest.mark.django_db
def test_what_is_shown_above_a_page_is_said_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER)
    client.force_login(User.objects.get(email="ada@example.com"))
    webhook = Webhook.objects.create(tenant=acme, url="https://example.com/x", enabled=False)
    monkeypatch.setattr(refusals, "gettext", lambda text: f"≈{text}")
    response = client.post(f"/t/acme/settings/webhooks/{webhook.pk}/test/", follow=True)
    assert "≈The webhook is disabled: enable it first." in response.content.decode()
