"""What the pool's pages say in Chinese where a service refuses in English."""

import pytest
from django.test import Client

from dashboard.refusals import said
from gpupool import services
from tenants.actor import SYSTEM
from tenants.services import InvalidInput


@pytest.mark.parametrize(
    "address", ["ftp://h", "http://u:p@h", "http://h/?q", "http://h/" + "x" * 300, "http://h:0", "http://a b/"]
)
@pytest.mark.django_db
def test_every_refusal_of_an_address_can_be_said_in_another_language(
    address: str, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput) as refused:
        services.attach_engine(address, engine="vllm", model_name="m", actor=SYSTEM)
    asked: list[str] = []

    def told(text: str) -> str:
        asked.append(text)
        return text

    monkeypatch.setattr("dashboard.refusals.gettext", told)
    assert said(refused.value.message) == refused.value.message
    assert asked == [refused.value.message]
    response = operator.post("/console/instances/attach/", {"url": address, "engine": "vllm", "model": "m"})
    assert response.status_code == 422
    assert f'value="{address}"' in response.content.decode()
