"""Portal: from a key to the first answer."""

import json
from collections.abc import Sequence
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from dashboard import selectors
from dashboard.access import PortalAccess, portal_page
from dashboard.reads.first_request import newest_request

EXAMPLE_MODEL: Final = "model-name"

CURL: Final = """curl {base_url}/chat/completions \\
  -H "Authorization: Bearer $GATEHOUSE_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{body}'"""

PYTHON: Final = """# pip install openai
import os
from openai import OpenAI

client = OpenAI(base_url={base_url!r}, api_key=os.environ["GATEHOUSE_API_KEY"])
answer = client.chat.completions.create(
    model={model!r},
    messages=[{{"role": "user", "content": "Say hello in five words."}}],
    max_tokens=32,
)
print(answer.choices[0].message.content)"""


JAVASCRIPT: Final = """// npm install openai; save this as hello.mjs; node hello.mjs
import OpenAI from "openai";

const client = new OpenAI({{ baseURL: {base_url}, apiKey: process.env.GATEHOUSE_API_KEY }});
const answer = await client.chat.completions.create({{
  model: {model},
  messages: [{{ role: "user", content: "Say hello in five words." }}],
  max_tokens: 32,
}});
console.log(answer.choices[0].message.content);"""

ANTHROPIC: Final = """# pip install anthropic
import os
from anthropic import Anthropic

client = Anthropic(base_url={root!r}, api_key=os.environ["GATEHOUSE_API_KEY"])
answer = client.messages.create(
    model={model!r},
    messages=[{{"role": "user", "content": "Say hello in five words."}}],
    max_tokens=32,
)
print(answer.content[0].text)"""


def snippets(*, base_url: str, model: str) -> dict[str, str]:
    """Examples that work when pasted, whatever the model's name holds."""
    request = {"model": model, "messages": [{"role": "user", "content": "Say hello in five words."}], "max_tokens": 32}
    lines = ",\n    ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in request.items())
    body = f"{{\n    {lines}\n  }}"
    return {
        "curl": CURL.format(base_url=base_url, body=body.replace("'", "'\\''")),
        "python": PYTHON.format(base_url=base_url, model=model),
        "javascript": JAVASCRIPT.format(base_url=json.dumps(base_url), model=json.dumps(model)),
        "anthropic": ANTHROPIC.format(root=base_url.removesuffix("/v1"), model=model),
    }


def _example(models: Sequence[selectors.PortalModel], wanted: str) -> str:
    """What the examples ask: the model that the address names, else the first that would answer now.

    Nobody says which models chat and which embed, so that the reader can choose.
    """
    if wanted in [model.name for model in models]:
        return wanted
    ready = [model for model in models if model.ready]
    return (ready or models)[0].name if models else EXAMPLE_MODEL


@portal_page
def page(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    models = selectors.list_portal_models(access.tenant)
    example = _example(models, request.GET.get("model", ""))
    base_url = f"{settings.GATEHOUSE.public_relay_url}/v1"
    return render(
        request,
        "portal/quickstart.html",
        {
            "access": access,
            "models": models,
            "example": example,
            "base_url": base_url,
            "root_url": settings.GATEHOUSE.public_relay_url,
            "snippets": snippets(base_url=base_url, model=example),
            "examples": [
                ("curl", "curl"),
                ("python", "Python"),
                ("javascript", "JavaScript"),
                ("anthropic", "Anthropic"),
            ],
            "seen": newest_request(access.tenant),
        },
    )


@portal_page
def first(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    """What the quick start asks again and again until the ledger has a request."""
    return render(request, "portal/_first_request.html", {"access": access, "seen": newest_request(access.tenant)})
