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

from bench.bars import LIMITED, OURS
from bench.chats import MODEL, chat
from bench.measure import Memory, Round, SlowStreams, measure_memory, measure_round, measure_slow_streams
from bench.peers import PEERS
from bench.plan import QUICK, Plan, scaled
from bench.profile import profile
from bench.proxies import Proxy, running
from bench.report import summarise, table, write
from bench.tools import FOLDER, ToolError, Upstream, build, missing_parts, send_load
from core.embedded.process import StartError

RESULTS: Final = FOLDER / "results"
LATEST: Final = RESULTS / "latest.json"
_FIRST_SECONDS: Final = 300.0  # LiteLLM takes a minute for its first thousands
_CAPACITY_SECONDS: Final = 3.0
NAMES: Final = ("direct", *(peer.name for peer in PEERS), OURS, LIMITED)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    made.add_argument("--quick", action="store_true", help="a few requests only: shows that it works")
    made.add_argument("--rounds", type=int, default=None, help="interleaved rounds (at least 3 for a result)")
    made.add_argument("--slow-streams", type=int, default=None, help="slow streams at once, 1 to 2000")
    made.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), help="leave the others out")
    made.add_argument(
        "--memory",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="watch our memory over many requests (default: unless --quick)",
    )
    made.add_argument("--profile", action="store_true", help="then record where ours spends its CPU (py-spy, perf)")
    made.add_argument("--output", type=Path, default=LATEST, help="where the JSON goes")
    return made


def plan_of(options: argparse.Namespace) -> Plan:
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
    options = parser().parse_args(arguments)
    if reason := missing_parts():
        print(f"bench skipped: {reason}")
        return 0
    try:
        build()
        result = _measure(options)
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


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _measure(options: argparse.Namespace) -> dict[str, object]:
    plan, names = plan_of(options), set(options.only)
    proxy_cpus, other_cpus = _cores()
    notes = [] if proxy_cpus else ["one core only: proxy, upstream and load share it"]
    if (busy := os.getloadavg()[0]) > 0.5:
        notes.append(f"the machine was busy before the run (load {busy:.1f}): trust ratios more than microseconds")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatehouse-bench-")))
        folder.chmod(0o755)  # the service account of the database must reach its folder
        if other_cpus:
            os.sched_setaffinity(0, other_cpus)  # what is started from here stays off the proxy's core
        upstream = stack.enter_context(Upstream(model=MODEL))
        proxies: list[Proxy] = []
        if "direct" in names:
            proxies.append(Proxy("direct", upstream.port, None))
        for peer in PEERS:
            if peer.name not in names:
                continue
            _say(f"starting {peer.name}")
            place = folder / peer.name
            try:
                started = running(peer, upstream.port, place, cpus=proxy_cpus, install=not options.quick)
                proxies.append(stack.enter_context(started))
            except (ToolError, StartError) as error:
                notes.append(f"{peer.name} is skipped: {error}")
        if names & {OURS, LIMITED}:
            from bench.gatehouse import gatehouse

            _say("starting gatehouse")
            ours = stack.enter_context(gatehouse(upstream.port, folder, cpus=proxy_cpus))
            proxies += [proxy for proxy in ours if proxy.name in names]
        if not proxies:
            raise ToolError("nothing to measure: " + "; ".join(notes))
        return _all_stretches(options, plan, proxies, proxy_cpus, other_cpus, notes)


def _all_stretches(
    options: argparse.Namespace,
    plan: Plan,
    proxies: list[Proxy],
    proxy_cpus: list[int] | None,
    other_cpus: list[int] | None,
    notes: list[str],
) -> dict[str, object]:
    mine = next((proxy for proxy in proxies if proxy.name in (OURS, LIMITED)), None)
    memory: Memory | None = None
    wanted = not options.quick if options.memory is None else options.memory
    if wanted and mine is not None:  # first, while the process is fresh
        _say(f"memory over {plan.memory_requests:,} requests: {mine.name}")
        memory = measure_memory(mine, plan, cpus=other_cpus)
    rate, own = _rates(proxies, plan, mine or proxies[-1], other_cpus)
    plans = {proxy.name: scaled(plan, own[proxy.name] / rate) for proxy in proxies}
    rounds: dict[str, list[Round]] = {proxy.name: [] for proxy in proxies}
    slow: dict[str, SlowStreams] = {}
    for number in range(plan.rounds):
        turn = number % len(proxies)
        for proxy in proxies[turn:] + proxies[:turn]:
            _say(f"round {number + 1} of {plan.rounds}: {proxy.name}")
            measured = measure_round(proxy, plans[proxy.name], rate=own[proxy.name], cpus=other_cpus)
            rounds[proxy.name].append(measured)
    for proxy in one_per_process(proxies):
        _say(f"{plans[proxy.name].slow_streams} slow streams: {proxy.name}")
        slow[proxy.name] = measure_slow_streams(proxy, plans[proxy.name], cpus=other_cpus)
    if options.profile:
        if mine is None:
            notes.append("no profile: gatehouse was left out")
        else:
            _say("profile: gatehouse")
            notes += profile(mine, plan, RESULTS, rate=rate, cpus=other_cpus)
    return summarise(
        rounds,
        slow,
        plan,
        rate=rate,
        proxy_cpu=proxy_cpus[0] if proxy_cpus else None,
        memory=memory,
        versions={proxy.name: proxy.version for proxy in proxies},
        notes=notes,
    )


def one_per_process(proxies: Sequence[Proxy]) -> list[Proxy]:
    """The first of those that are one process seen with several keys: it grows its memory once."""
    first = {proxy.pid: proxy for proxy in reversed(proxies)}
    return [proxy for proxy in proxies if first[proxy.pid] is proxy]


def _rates(
    proxies: Sequence[Proxy], plan: Plan, mine: Proxy, cpus: Sequence[int] | None
) -> tuple[float, dict[str, float]]:
    """Requests a second for all to carry, half of what `mine` can; and each one's own, lower where it cannot.

    Compared at one load, because CPU per request falls with load: a busy proxy takes many requests at a wake-up.
    """
    half = {}
    for proxy in proxies:
        _say(f"warming up {proxy.name}")
        count = plan.first_requests
        for _ in range(2):
            seen = send_load(
                proxy.port,
                chat(),
                requests=count,
                concurrency=plan.saturating_concurrency,
                headers=proxy.headers,
                limit_seconds=_FIRST_SECONDS,
                cpus=cpus,
            )
            if seen.ok == 0:
                raise ToolError(f"{proxy.name} answered no request: {seen.complaint}")
            if complaint := proxy.settled(seen.ok, seen.failed):
                raise ToolError(complaint)
            count = max(50, min(plan.warm_up_requests, round(seen.ok / seen.seconds * _CAPACITY_SECONDS)))
        half[proxy.name] = max(10.0, seen.ok / seen.seconds / 2)
    return half[mine.name], rates_of(half, half[mine.name])


def rates_of(half: dict[str, float], common: float) -> dict[str, float]:
    """The common rate for each that would not be near its end with it, else half of what it can carry."""
    return {name: common if each >= common * 0.65 else each for name, each in half.items()}
