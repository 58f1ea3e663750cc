"""`make bench`: every proxy in turn, round by round, on one core of its own."""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.measure import MODEL, QUICK, Plan, Round, SlowStreams, chat, measure_round, measure_slow_streams
from bench.proxies import Proxy, nginx, nginx_binary
from bench.report import summarise, table, write
from bench.tools import FOLDER, ToolError, Upstream, build, missing_parts, send_load
from core.embedded.process import StartError

LATEST: Final = FOLDER / "results" / "latest.json"
_NAMES: Final = ("direct", "nginx", "gatehouse", "gatehouse_limited")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few requests only: shows that it works")
    parser.add_argument("--rounds", type=int, default=None, help="interleaved rounds (at least 3 for a result)")
    parser.add_argument("--slow-streams", type=int, default=None, help="slow streams at once, 1 to 2000")
    parser.add_argument("--only", nargs="+", choices=_NAMES, default=list(_NAMES), help="leave the others out")
    parser.add_argument("--output", type=Path, default=LATEST, help="where the JSON goes")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else Plan()
    if options.rounds is not None:
        plan = replace(plan, rounds=max(1, min(options.rounds, 20)))
    if options.slow_streams is not None:
        plan = replace(plan, slow_streams=max(1, min(options.slow_streams, 2000)))
    return plan


def _cores() -> tuple[list[int] | None, list[int] | None]:
    """A core for the proxy and the others for everything else; None where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[-1:], cores[:-1]) if len(cores) > 1 else (None, None)


def main(arguments: Sequence[str]) -> int:
    """0 when everything was measured without an error, 1 otherwise; a missed bar is told, not an error."""
    options = _parser().parse_args(arguments)
    if reason := missing_parts():
        print(f"bench skipped: {reason}")
        return 0
    try:
        build()
        result = _measure(_plan(options), set(options.only))
    except KeyboardInterrupt:
        print("bench interrupted: nothing is written", file=sys.stderr)
        return 130
    except (ToolError, StartError) as error:
        print(f"bench failed: {error}", file=sys.stderr)
        return 1
    write(result, options.output)
    print(table(result))
    print(f"written to {options.output}")
    return 1 if result["failures"] else 0


def _measure(plan: Plan, names: set[str]) -> dict[str, object]:
    proxy_cpus, other_cpus = _cores()
    if other_cpus:
        os.sched_setaffinity(0, other_cpus)  # what is started from here stays off the proxy's core
    notes = [] if proxy_cpus else ["one core only: proxy, upstream and load share it"]
    if (busy := os.getloadavg()[0]) > 0.5:
        notes.append(f"the machine was busy before the run (load {busy:.1f}): trust ratios more than microseconds")
    rounds: dict[str, list[Round]] = {}
    slow: dict[str, SlowStreams] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatehouse-bench-")))
        folder.chmod(0o755)  # the service account of the database must reach its folder
        upstream = stack.enter_context(Upstream(model=MODEL))
        proxies: list[Proxy] = []
        if "direct" in names:
            proxies.append(Proxy("direct", upstream.port, None))
        if "nginx" in names:
            if nginx_binary():
                proxies.append(stack.enter_context(nginx(upstream.port, folder / "nginx", cpus=proxy_cpus)))
            else:
                notes.append("nginx is not installed: no ratios")
        if names & {"gatehouse", "gatehouse_limited"}:
            from bench.gatehouse import gatehouse

            ours = stack.enter_context(gatehouse(upstream.port, folder, cpus=proxy_cpus))
            proxies += [proxy for proxy in ours if proxy.name in names]
        rate = _half_load(proxies, plan)
        for number in range(plan.rounds):
            turn = number % len(proxies)
            for proxy in proxies[turn:] + proxies[:turn]:
                print(f"round {number + 1} of {plan.rounds}: {proxy.name}", file=sys.stderr, flush=True)
                measured = measure_round(proxy, plan, rate=rate, cpus=other_cpus)
                rounds.setdefault(proxy.name, []).append(measured)
        for proxy in _one_per_process(proxies):
            print(f"{plan.slow_streams} slow streams: {proxy.name}", file=sys.stderr, flush=True)
            slow[proxy.name] = measure_slow_streams(proxy, plan, cpus=other_cpus)
        ordered = {proxy.name: rounds[proxy.name] for proxy in proxies}
        return summarise(ordered, slow, plan, rate=rate, proxy_cpu=proxy_cpus[0] if proxy_cpus else None, notes=notes)


def _one_per_process(proxies: Sequence[Proxy]) -> list[Proxy]:
    """The first of those that are one process seen with several keys: it grows its memory once."""
    first = {proxy.pid: proxy for proxy in reversed(proxies)}
    return [proxy for proxy in proxies if first[proxy.pid] is proxy]


def _half_load(proxies: Sequence[Proxy], plan: Plan) -> float:
    """Requests a second: half of what ours can do (else the last proxy), for all to carry.

    Compared at one load, because CPU per request falls with load: a busy proxy takes many requests at a wake-up.
    """
    proxy = next((proxy for proxy in proxies if proxy.name.startswith("gatehouse")), proxies[-1])
    for _ in range(2):  # the first time warms up
        concurrency = plan.saturating_concurrency
        seen = send_load(
            proxy.port, chat(), requests=plan.warm_up_requests, concurrency=concurrency, headers=proxy.headers
        )
        if seen.ok == 0:
            raise ToolError(f"{proxy.name} answered no request: {seen.complaint}")
        if complaint := proxy.settled(seen.ok, seen.failed):
            raise ToolError(complaint)
    return max(10.0, seen.requests / seen.seconds / 2)
