"""`python -m bench.pages`: whether people who turn pages slow applications down.

Asks a running installation (`make up`): requests to the relay one after the other, in turns of some seconds with and
without browsers' requests for the console's lists beside them, and tells both latencies. Where relay and web share
their processors, as on one small machine, what is left of the difference is what they take from each other.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import httpx2 as httpx

from bench.tools import FOLDER

PAGES: Final = (
    "/console/overview/",
    "/console/requests/",
    "/console/instances/",
    "/console/gpu-memory/",
    "/console/slo/",
    "/console/audit/",
    "/console/tenants/",
    "/console/keys/",
)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    made.add_argument("--relay", default="http://127.0.0.1:8080")
    made.add_argument("--web", default="http://127.0.0.1:8000")
    made.add_argument("--key", required=True)
    made.add_argument("--user", default="operator@example.test")
    made.add_argument("--password", required=True)
    made.add_argument("--model", default="SmolLM2-135M")
    made.add_argument("--readers", type=int, default=2, help="people who turn pages without a pause")
    made.add_argument("--turns", type=int, default=6)
    made.add_argument("--seconds", type=float, default=8.0, help="of a turn")
    made.add_argument("--output", type=Path, default=FOLDER / "results" / "pages.json")
    return made


async def log_in(options: argparse.Namespace) -> httpx.AsyncClient:
    browser = httpx.AsyncClient(base_url=options.web, timeout=30, follow_redirects=True)
    page = (await browser.get("/login/")).text
    token = page.split('name="csrfmiddlewaretoken" value="', 1)[1].split('"', 1)[0]
    form = {"username": options.user, "password": options.password, "csrfmiddlewaretoken": token}
    answer = await browser.post("/login/", data=form, headers={"Referer": f"{options.web}/login/"})
    if "/console/" not in str(answer.url):
        raise SystemExit("The log-in was refused: --user and --password name an operator.")
    return browser


async def turn_pages(browser: httpx.AsyncClient, seen: list[float]) -> None:
    """Without a pause, until cancelled."""
    while True:
        for page in PAGES:
            began = time.perf_counter()
            (await browser.get(page)).raise_for_status()
            seen.append(time.perf_counter() - began)


async def ask(
    client: httpx.AsyncClient, options: argparse.Namespace, until: float, took: dict[str, list[float]]
) -> None:
    """A list of models and a one-token chat in turn."""
    chat = {"model": options.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    while time.perf_counter() < until:
        for name, request in (
            ("models", client.build_request("GET", "/v1/models")),
            ("chat", client.build_request("POST", "/v1/chat/completions", json=chat)),
        ):
            began = time.perf_counter()
            (await client.send(request)).raise_for_status()
            took[name].append(time.perf_counter() - began)


def told(seconds: Sequence[float]) -> dict[str, Any]:
    """Milliseconds."""
    cuts = quantiles(seconds, n=100) if len(seconds) > 1 else [0.0] * 99
    return {"n": len(seconds), "p50_ms": round(median(seconds) * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2)}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    browser = await log_in(options)
    headers = {"Authorization": f"Bearer {options.key}"}
    quiet: dict[str, list[float]] = {"models": [], "chat": []}
    busy: dict[str, list[float]] = {"models": [], "chat": []}
    pages: list[float] = []
    async with httpx.AsyncClient(base_url=options.relay, headers=headers, timeout=60) as client:
        await ask(client, options, time.perf_counter() + 2, {"models": [], "chat": []})
        for turn in range(options.turns):
            readers = [
                asyncio.create_task(turn_pages(browser, pages)) for _ in range(options.readers if turn % 2 else 0)
            ]
            await ask(client, options, time.perf_counter() + options.seconds, busy if turn % 2 else quiet)
            for reader in readers:
                reader.cancel()
            for ended in await asyncio.gather(*readers, return_exceptions=True):
                if not isinstance(ended, asyncio.CancelledError):
                    raise SystemExit(f"A page was not answered: {ended}")
    await browser.aclose()
    return {
        "alone": {name: told(seconds) for name, seconds in quiet.items()},
        "beside_pages": {name: told(seconds) for name, seconds in busy.items()},
        "pages": told(pages),
        "readers": options.readers,
    }


def main() -> int:
    options = parser().parse_args()
    result = asyncio.run(measure(options))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
