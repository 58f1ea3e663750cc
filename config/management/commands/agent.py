"""`manage.py agent`: the node agent of this machine. Needs neither a database nor Valkey."""

import asyncio
import os
import platform
import re
import shlex
import signal
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from config.environment import Environment
from config.node_tls import tls_to_web
from core.clock import SystemClock
from gpupool.agent.exporter import exporter_fetch
from gpupool.agent.link import NodeRefused
from gpupool.agent.node import NodeAgent, NodeSettings
from gpupool.agent.processes import clean_environment
from gpupool.agent.state import AgentAlreadyRuns
from gpupool.agent.workshop import Timings
from gpupool.discovery.amd import amd_source
from gpupool.discovery.base import DeviceSource
from gpupool.discovery.fabric_manager import FabricManagerLog
from gpupool.discovery.host import HostSource
from gpupool.discovery.intel import intel_source
from gpupool.discovery.nvidia import nvidia_source
from gpupool.discovery.pci_source import PciSource
from gpupool.policies.oom_guard import Rules as GuardRules

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


class Command(BaseCommand):
    help = "Run the node agent: discover devices, start and watch engines as the controller desires."
    requires_system_checks = ()
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--node", help="Name of this node; GATEHOUSE_NODE_NAME or the host name when left out.")
        parser.add_argument(
            "--stop-engines-on-exit",
            action="store_true",
            help="Stop the engines too when told to stop. By default they go on, and the next agent adopts them.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        environment: Environment = settings.GATEHOUSE
        node = options["node"] or environment.node_name or platform.node()
        if not _NODE_NAME.fullmatch(node):
            raise CommandError(f"{node!r} cannot be a node's name: use letters, digits, dots and dashes.")
        if not environment.node_token:
            raise CommandError("GATEHOUSE_NODE_TOKEN is not set: it is the token that was shown for this node.")
        structlog.contextvars.bind_contextvars(node=node)
        node_settings = NodeSettings(
            node=node,
            token=environment.node_token,
            web_url=environment.public_web_url,
            var_dir=environment.var_dir,
            port_first=environment.engine_port_first,
            port_count=environment.engine_port_count,
            stop_engines_on_exit=options["stop_engines_on_exit"],
            address=environment.node_address,
            kernel_log=None if environment.kernel_log == "none" else Path(environment.kernel_log),
            tls=tls_to_web(environment, environment.public_web_url),
            timings=Timings(load_deadline=environment.load_deadline_seconds),
            guard_rules=GuardRules(
                signal_share=environment.guard_signal_share,
                evict_share=environment.guard_evict_share,
                growth_bytes=environment.guard_growth_bytes,
            ),
            reboot_command=_command(environment.healing_reboot_command),
        )
        try:
            asyncio.run(_run(node_settings, environment.host_memory_share, environment.dcgm_url))
        except (NodeRefused, AgentAlreadyRuns, ValueError) as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"The agent cannot use {environment.var_dir}: {error}.") from error


def _command(line: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise CommandError(f"GATEHOUSE_HEALING_REBOOT_COMMAND={line!r} cannot be read: {error}.") from error
    if not words:
        raise CommandError("GATEHOUSE_HEALING_REBOOT_COMMAND is empty: say how this node is restarted.")
    return words


async def _run(node_settings: NodeSettings, memory_share: float, dcgm_url: str | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    env, clock = clean_environment(os.environ), SystemClock()
    sources: list[DeviceSource] = [
        HostSource(memory_share=memory_share),
        nvidia_source(
            env=env,
            clock=clock,
            exporter=exporter_fetch(dcgm_url) if dcgm_url else None,
            topology_file=os.environ.get("NCCL_TOPO_FILE", ""),
        ),
        FabricManagerLog(),
        amd_source(env=env, clock=clock),
        intel_source(env=env, clock=clock),
        PciSource(env=env, clock=clock),  # last: it fills the gaps of those that know more
    ]
    await NodeAgent(node_settings, sources).run(stop)
