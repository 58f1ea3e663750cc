"""`manage.py attach`: what one already runs is in service with one command, or one learns why not."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from gpupool.models import Instance, InstanceState
from gpupool.selectors import list_ready_endpoints
from tenants.actor import SYSTEM
from tenants.models import Grant
from tenants.services import create_tenant
from tests.gpupool.engine_stub import EngineStub

pytestmark = pytest.mark.django_db


def _attach(*arguments: str) -> str:
    said = StringIO()
    call_command("attach", *arguments, stdout=said)
    return said.getvalue()


@pytest.mark.shows("R120")
def test_an_engine_that_answers_is_in_service_at_once() -> None:
    create_tenant(slug="demo", name="Demo", actor=SYSTEM)
    with EngineStub("llama") as engine:
        said = _attach(engine.url, "--engine", "vllm", "--model", "llama", "--tenant", "demo", "--slots", "8")
    assert "takes requests from now on" in said
    assert "curl " in said
    (endpoint,) = list_ready_endpoints()
    assert (endpoint.model, endpoint.engine, endpoint.host, endpoint.slots) == ("llama", "vllm", "127.0.0.1", 8)
    assert endpoint.authorization is None
    assert Grant.objects.get().model_pattern == "llama"
    assert engine.asked == ["/health", "/v1/models"]  # nothing that costs a token


def test_attaching_again_changes_nothing() -> None:
    with EngineStub("llama") as engine:
        _attach(engine.url, "--engine", "vllm", "--model", "llama")
        said = _attach(engine.url, "--engine", "vllm", "--model", "llama")
    assert "Already attached" in said
    assert Instance.objects.count() == 1


def test_the_engines_own_name_for_the_model_may_differ_and_a_path_may_come_before_v1() -> None:
    with EngineStub("meta/llama-8b", base_path="/gpu7") as engine:
        _attach(engine.url + "/v1", "--engine", "vllm", "--model", "llama", "--served-name", "meta/llama-8b")
    (endpoint,) = list_ready_endpoints()
    assert (endpoint.base_path, endpoint.served_name) == ("/gpu7", "meta/llama-8b")


def test_an_engine_with_a_key_is_asked_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with EngineStub("llama", key="engine-secret") as engine:
        arguments = (
            engine.url,
            "--engine",
            "openai",
            "--model",
            "llama",
            "--credential-env",
            "GATEHOUSE_ENGINE_KEY_MINE",
        )
        said = _attach(*arguments)
        assert "refuses our key (401" in said
        assert list_ready_endpoints() == []
        monkeypatch.setenv("GATEHOUSE_ENGINE_KEY_MINE", "engine-secret")
        said = _attach(*arguments)
    assert "takes requests from now on" in said
    (endpoint,) = list_ready_endpoints()
    assert endpoint.authorization == "Bearer engine-secret"
    assert "engine-secret" not in said + str(Instance.objects.values().get())


def test_an_engine_that_serves_something_else_is_told_so() -> None:
    with EngineStub("qwen") as engine:
        said = _attach(engine.url, "--engine", "vllm", "--model", "llama")
    assert "It serves qwen, not llama." in said
    assert Instance.objects.get().state == InstanceState.WARMING


def test_an_engine_that_is_not_there_is_attached_and_waited_for() -> None:
    said = _attach("http://127.0.0.1:9", "--engine", "vllm", "--model", "llama")
    assert "takes no requests yet" in said
    assert list_ready_endpoints() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("https://", "--engine", "vllm", "--model", "m"), "looks like http://host:8000 or https://host"),
        (("http://h\xf6st:8000", "--engine", "vllm", "--model", "m"), "characters that do not belong there"),
        (("host:8000", "--engine", "vllm", "--model", "m"), "looks like http://host:8000"),
        (("http://host", "--engine", "warp", "--model", "m"), "no engine 'warp'; known are vllm, "),
        (("http://host", "--engine", "vllm", "--model", "m", "--tenant", "nobody"), "no tenant 'nobody'"),
    ],
)
def test_what_cannot_be_attached_is_said_in_a_sentence_and_leaves_nothing(
    arguments: tuple[str, ...], says: str
) -> None:
    with pytest.raises(CommandError, match=says):
        _attach(*arguments)
    assert not Instance.objects.exists()
