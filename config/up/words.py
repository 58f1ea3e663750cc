"""What `up` prints once everything answers."""

import getpass
import json
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from config.environment import Environment
from config.up.addresses import local_url


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that the closing words speak of; secrets are None where only their hash is left."""

    environment: Environment
    seconds: float
    model: str
    operator_email: str
    operator_password: str | None
    member_email: str
    member_password: str | None
    api_key: str | None
    gpus: int
    node_facts: Mapping[str, Any]


def closing_words(outcome: Outcome) -> str:
    """The text, ready to print."""
    environment = outcome.environment
    relay = environment.relay_url or local_url(environment.relay_host, environment.relay_port)
    web = environment.web_url or local_url(environment.web_host, environment.web_port)
    lines = [
        "",
        f"Gatehouse is up ({outcome.seconds:.0f} s).",
        "",
        f"  OpenAI API           {relay}/v1",
        f"  Console and portal   {web}/",
        "",
        f"  Operator             {outcome.operator_email:<24} {_password(outcome.operator_password)}",
        f"  Member of demo       {outcome.member_email:<24} {_password(outcome.member_password)}",
    ]
    if outcome.operator_password is None or outcome.member_password is None:
        lines.append("                       (forgotten: .venv/bin/python manage.py changepassword ADDRESS)")
    if outcome.api_key is not None:
        lines.append(f"  API key              {outcome.api_key}")
        lines.append("                       (shown now and never again; `make demo-key` makes another)")
    else:
        lines.append("  API key              as shown at the first start; `make demo-key` makes another and shows it")
    lines += ["", "Ask it something:", "", curl_line(relay, outcome.model, outcome.api_key), ""]
    lines += [
        f"{outcome.model} on a CPU is slow, and no scholar: it shows a request's way, not what a model can do.",
        gpu_words(outcome.gpus, outcome.node_facts),
        "",
        "Put a server of your own behind the door:",
        "  .venv/bin/python manage.py attach http://HOST:8000 --engine vllm --model NAME --tenant demo",
        "",
        "From another machine, through SSH:",
        f"  ssh -N -L {environment.relay_port}:127.0.0.1:{environment.relay_port} "
        f"-L {environment.web_port}:127.0.0.1:{environment.web_port} {_user()}@{platform.node() or 'HOST'}",
        "",
        f"Logs: {environment.var_dir / 'log'}/*.log     State: make status",
    ]
    return "\n".join(lines)


def curl_line(relay_url: str, model: str, api_key: str | None) -> str:
    """A command that works when it is pasted; without a key it takes $GATEHOUSE_API_KEY."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32})
    key = f"'Authorization: Bearer {api_key}'" if api_key else '"Authorization: Bearer $GATEHOUSE_API_KEY"'
    return f"curl {relay_url}/v1/chat/completions -H {key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def gpu_words(gpus: int, facts: Mapping[str, Any]) -> str:
    """How many GPUs the node has, or why none was found."""
    if gpus:
        return f"GPUs found: {gpus}. The console places models on them."
    return str(facts.get("no_gpu_reason") or "No GPU was found; the node agent has not said why yet (see the console).")


def _password(password: str | None) -> str:
    return f"password {password}" if password else "password as at the first start"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "USER"
