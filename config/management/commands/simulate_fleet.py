"""`manage.py simulate-fleet`: nodes that are made up, for demonstration and for tests of scale."""

import asyncio
import json
import signal
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from config.environment import Environment
from config.node_tls import tls_to_web
from gpupool.agent.link import NodeRefused
from gpupool.agent.state import AgentAlreadyRuns
from gpupool.policies.simulated import PREFIX
from gpupool.simulation.fleet import Fleet, FleetSettings, node_names, ports_of_a_node, sole_fleet
from gpupool.simulation.kinds import KINDS

if TYPE_CHECKING:  # an agent's process need not load models where it has --tokens
    from gpupool.services import RemovedNode

T = TypeVar("T")

_RANGES: Final = (
    ("speed", 0.01, 1000.0),
    ("traffic", 0.0, 1.0),
    ("xid_rate", 0.0, 3600.0),
    ("loss_rate", 0.0, 3600.0),
    ("outage_seconds", 0.0, 86_400.0),
    ("port_first", 1024, 65_535),
)


class Command(BaseCommand):
    help = (
        "Run a fleet of simulated nodes in this one process: agents that speak to the web process, made-up GPUs, and "
        "engines that compute nothing. Everything of it is marked as simulated."
    )
    requires_system_checks = ()
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--nodes", type=int, default=8, help="How many nodes.")
        parser.add_argument("--gpus", type=int, default=8, help="GPUs of each node.")
        parser.add_argument("--kind", choices=sorted(KINDS), default="h100", help="What GPUs.")
        parser.add_argument("--speed", type=float, default=1.0, help="How fast engines load and answer.")
        parser.add_argument("--traffic", type=float, default=0.3, help="Imagined work of each engine, 0 to 1.")
        parser.add_argument("--xid-rate", type=float, default=0.0, help="Errors an hour of each GPU.")
        parser.add_argument("--loss-rate", type=float, default=0.0, help="Losses of power an hour of each node.")
        parser.add_argument("--outage-seconds", type=float, default=45.0, help="How long a lost node is away.")
        parser.add_argument("--port-first", type=int, default=30_000, help="First port of the engines; 64 a node.")
        parser.add_argument("--seed", type=int, default=1, help="Another seed is another course of events.")
        parser.add_argument("--web-url", help="Address of the web process; GATEHOUSE_WEB_URL when left out.")
        parser.add_argument(
            "--remove",
            action="store_true",
            help="Take all simulated nodes out of the database, with their devices, instances and events, and end.",
        )
        parser.add_argument(
            "--tokens",
            type=Path,
            help="JSON file of node tokens by node name. When left out the nodes are made in the database, and tokens "
            "of nodes that are there already are renewed.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        environment: Environment = settings.GATEHOUSE
        if options["remove"]:
            self._remove()
            return
        _check(options)
        web_url = options["web_url"] or environment.public_web_url
        fleet_settings = FleetSettings(
            kind=options["kind"],
            gpus=options["gpus"],
            web_url=web_url,
            tls=tls_to_web(environment, web_url),
            var_dir=environment.var_dir / "simulated",
            port_first=options["port_first"],
            speed=options["speed"],
            traffic=options["traffic"],
            xids_an_hour=options["xid_rate"],
            losses_an_hour=options["loss_rate"],
            outage_seconds=options["outage_seconds"],
            seed=options["seed"],
        )
        names = node_names(options["kind"], options["nodes"])
        try:
            ports_of_a_node(options["port_first"], len(names))
            # Held before any token is renewed: that would end a fleet that runs with the ones before.
            with sole_fleet(fleet_settings.var_dir, fleet_settings.kind):
                fleet = Fleet(fleet_settings, self._tokens(options["tokens"], names))
                self.stdout.write(
                    f"{len(fleet.nodes)} simulated nodes of {options['gpus']} GPUs, until Ctrl-C. They run versions "
                    f"whose artefact begins with {PREFIX}; --remove takes the nodes away again."
                )
                asyncio.run(_run(fleet))
        except (NodeRefused, AgentAlreadyRuns, ValueError, OSError) as error:
            raise CommandError(str(error)) from error

    def _remove(self) -> None:
        removed = with_database(remove_nodes)
        self.stdout.write(
            f"Removed {len(removed)} simulated nodes with {sum(each.devices for each in removed)} devices and "
            f"{sum(each.instances for each in removed)} instances."
        )
        if left := with_database(waiting_versions):
            self.stdout.write(
                f"Versions that only simulated nodes run, and that now wait for one: {', '.join(left)}. "
                "Retire them, or set their replicas to 0."
            )

    def _tokens(self, file: Path | None, names: list[str]) -> dict[str, str]:
        if file is None:
            return with_database(lambda: node_tokens(names))
        try:
            given = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise CommandError(f"The tokens in {file} cannot be read: {error}") from error
        if not isinstance(given, dict) or not all(isinstance(token, str) for token in given.values()):
            raise CommandError(f"{file} must hold an object of tokens by node name.")
        return {name: given[name] for name in names if name in given} or given


def node_tokens(names: list[str]) -> dict[str, str]:
    """A fresh token for each name, from the database. Raises CommandError for a real node of such a name."""
    from gpupool import services
    from gpupool.models import Node
    from tenants.actor import SYSTEM

    known = {node.name: node for node in Node.objects.filter(name__in=names)}
    tokens: dict[str, str] = {}
    for name in names:
        node = known.get(name)
        if node is None:
            tokens[name] = services.create_node(name, simulated=True, actor=SYSTEM).token
        elif node.simulated:
            tokens[name] = services.rotate_node_token(node.pk, actor=SYSTEM).token
        else:
            raise CommandError(f"There is a real node {name}: a simulated one cannot take its place.")
    return tokens


def remove_nodes() -> list["RemovedNode"]:
    """All simulated nodes, whoever made them."""
    from gpupool import services
    from gpupool.models import Node
    from tenants.actor import SYSTEM

    nodes = Node.objects.filter(simulated=True).order_by("pk").values_list("pk", flat=True)
    return [services.remove_simulated_node(node_id, actor=SYSTEM) for node_id in list(nodes)]


def waiting_versions() -> list[str]:
    """Names of simulated versions that are asked for."""
    from gpupool.models import ModelVersion

    rows = ModelVersion.objects.filter(artefact_uri__startswith=PREFIX, replicas__gt=0).select_related("model")
    return [f"{row.model.name} {row.name}" for row in rows.order_by("model__name", "pk")]


def with_database(call: Callable[[], T]) -> T:
    """Its result. Raises CommandError, in a sentence, where the database is away or not migrated."""
    try:
        return call()
    except Error as error:
        raise CommandError(
            f"The database cannot be used: {str(error).splitlines()[0]}. DATABASE_URL must be that of the web process "
            "(beside `up` it is found by itself), and migrated; or give tokens by --tokens."
        ) from error


def _check(options: Mapping[str, Any]) -> None:
    """Raises CommandError for a number that makes no sense."""
    if not 1 <= options["nodes"] <= 500 or not 1 <= options["gpus"] <= 16:
        raise CommandError("A simulated fleet has 1 to 500 nodes of 1 to 16 GPUs.")
    for name, least, most in _RANGES:
        if not least <= options[name] <= most:  # NaN is in no range
            raise CommandError(f"--{name.replace('_', '-')} is {least:g} to {most:g}, not {options[name]:g}.")


async def _run(fleet: Fleet) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await fleet.run(stop)
