import json
import shlex
from dataclasses import replace

from config.environment import Environment
from config.up.words import Outcome, closing_words, curl_line

FIRST = Outcome(
    environment=Environment(relay_port=8081, web_port=8002),
    seconds=4.4,
    model="SmolLM2-135M",
    operator_email="operator@example.test",
    operator_password="open-sesame",
    member_email="demo@example.test",
    member_password="open-barley",
    api_key="sk-gh-once",
    gpus=0,
    node_facts={"no_gpu_reason": "No GPU was found: libnvidia-ml.so.1 is not on this machine."},
)


def test_curl_line_survives_the_shell() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:8080", "it's", "sk-gh-x"))
    assert words[:2] == ["curl", "http://127.0.0.1:8080/v1/chat/completions"]
    assert "Authorization: Bearer sk-gh-x" in words
    assert json.loads(words[words.index("-d") + 1])["model"] == "it's"


def test_first_start_says_everything_once() -> None:
    text = closing_words(FIRST)
    for part in (
        "http://127.0.0.1:8081/v1",
        "http://127.0.0.1:8002/",
        "password open-sesame",
        "password open-barley",
        "sk-gh-once",
        "ssh -N -L 8081:127.0.0.1:8081 -L 8002:127.0.0.1:8002",
        "log/*.log",
        "no scholar",
        "No GPU was found: libnvidia-ml.so.1 is not on this machine.",
        "attach http://HOST:8000 --engine vllm --model NAME",
    ):
        assert part in text


def test_later_start_has_no_secrets_and_says_how_to_get_new_ones() -> None:
    text = closing_words(replace(FIRST, operator_password=None, member_password=None, api_key=None, gpus=2))
    assert "changepassword" in text
    assert "make demo-key" in text
    assert '"Authorization: Bearer $GATEHOUSE_API_KEY"' in text
    assert "GPUs found: 2" in text


def test_listening_everywhere_is_shown_as_an_address_that_works() -> None:
    text = closing_words(
        replace(FIRST, environment=Environment(relay_host="0.0.0.0", web_url="https://gw.example.test"))
    )
    assert "curl http://127.0.0.1:8080/v1/" in text
    assert "https://gw.example.test/" in text
    assert "0.0.0.0" not in text
