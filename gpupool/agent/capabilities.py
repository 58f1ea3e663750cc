"""What this node can isolate instances by, each with a reason in words. Read from files; tools are only asked who
they are, in children with a deadline."""

import os
import re
import shutil
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from gpupool.agent.facts import clean
from gpupool.agent.isolation.cgroup import why_no_groups
from gpupool.agent.isolation.sandbox import MPS_PIPES, trial_argv
from gpupool.discovery.small_files import text_of
from gpupool.discovery.tools import ToolFailed, ask

Run = Callable[[Sequence[str]], Awaitable["tuple[int, str]"]]
"""Runs a command: its exit code and what it said."""

OLDEST_SYSTEMD: Final = 245
OLDEST_TOOLKIT: Final = (1, 14)
_TOOL_SECONDS: Final = 5.0
_MOST_SAID: Final = 4096
_VERSION: Final = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?")
_LONGEST_KIND: Final = 200


def has(reason: str = "", **more: object) -> dict[str, Any]:
    """It is there."""
    return {"available": True, "reason": reason, **more}


def lacks(reason: str, **more: object) -> dict[str, Any]:
    """It is not, because."""
    return {"available": False, "reason": reason, **more}


async def read_capabilities(
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    run: Run | None = None,
    which: Callable[[str], str | None] = shutil.which,
    mig_devices: int | None = None,
) -> dict[str, Any]:
    """The record. `root` is another file system in tests; `mig_devices` counts partitions that discovery found."""
    environ, run = os.environ if environ is None else environ, run or run_tool
    return {
        "cgroup": cgroup(root),
        "user_namespaces": user_namespaces(root),
        "bubblewrap": await bubblewrap(run, which),
        "gvisor": await gvisor(run, which),
        "mps": mps(root, environ, which),
        "mig": mig(mig_devices),
        "cdi": cdi(root),
        "container_toolkit": await container_toolkit(root, run, which),
        "systemd": await systemd(run, which),
    }


def cgroup(root: Path) -> dict[str, Any]:
    """Control groups of version 2 with a memory controller that this agent may hand on."""
    reason = why_no_groups(root)
    return has("Instances get a control group each, with a hard limit of memory.") if reason is None else lacks(reason)


def user_namespaces(root: Path) -> dict[str, Any]:
    limit = text_of(root / "proc/sys/user/max_user_namespaces")
    if limit == "0":
        return lacks("user.max_user_namespaces is 0: set it above 0 with sysctl.")
    if text_of(root / "proc/sys/kernel/unprivileged_userns_clone") == "0":
        return lacks("kernel.unprivileged_userns_clone is 0: set it to 1 with sysctl.")
    if text_of(root / "proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return lacks("AppArmor restricts user namespaces to programs that have a profile which allows them.")
    return has() if limit else lacks("The kernel does not tell of user namespaces.")


async def bubblewrap(run: Run, which: Callable[[str], str | None]) -> dict[str, Any]:
    """Tried for real: whether it works depends on the kernel, on AppArmor and on the container around this agent."""
    path = which("bwrap")
    if path is None:
        return lacks("bwrap was not found: install bubblewrap.")
    code, said = await run(trial_argv(path))
    if code != 0:
        why = _last_line(said) or f"it exits with code {code}"
        return lacks(f"bwrap cannot make a sandbox here: {why}.", path=path)
    _, version = await run((path, "--version"))
    return has(path=path, version=_version(version))


async def gvisor(run: Run, which: Callable[[str], str | None]) -> dict[str, Any]:
    path = which("runsc")
    if path is None:
        return lacks("runsc was not found: install gVisor.")
    code, version = await run((path, "--version"))
    if code != 0:
        return lacks(f"runsc does not run here: {_last_line(version)}.", path=path)
    return has(path=path, version=_last_line(version.partition("\n")[0]).removeprefix("runsc version ").strip())


def mps(root: Path, environ: Mapping[str, str], which: Callable[[str], str | None]) -> dict[str, Any]:
    """A control daemon that runs: clients find it by its pipe folder."""
    folder = environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_PIPES
    if (root / folder.lstrip("/") / "control").exists():
        return has(pipe_directory=folder)
    if which("nvidia-cuda-mps-control") is None:
        return lacks("nvidia-cuda-mps-control was not found: it comes with NVIDIA's driver.")
    return lacks(f"No MPS control daemon listens in {folder}: start it with `nvidia-cuda-mps-control -d`.")


def mig(devices: int | None) -> dict[str, Any]:
    if devices is None:
        return lacks("No NVIDIA driver has told of its GPUs.")
    return has(devices=devices) if devices else lacks("No GPU is in MIG mode with instances on it.", devices=0)


def cdi(root: Path) -> dict[str, Any]:
    """Specifications of device nodes for containers."""
    kinds: dict[str, int] = {}
    for spec in read_cdi_specs(root):
        kind = clean(str(spec.get("kind") or ""))[:_LONGEST_KIND]
        devices = spec.get("devices")
        if kind and isinstance(devices, list):
            kinds[kind] = kinds.get(kind, 0) + len(devices)
    if not kinds:
        return lacks("There is no CDI specification in /etc/cdi or /var/run/cdi; `nvidia-ctk cdi generate` makes one.")
    return has(kinds=kinds)


def read_cdi_specs(root: Path) -> list[dict[str, Any]]:
    """Every specification that can be read; what is no YAML or JSON of this shape is passed over."""
    files = [file for folder in ("etc/cdi", "var/run/cdi") for file in sorted((root / folder).glob("*"))]
    specs = [_parse_yaml(text_of(file)) for file in files if file.suffix in (".yaml", ".yml", ".json")]
    return [spec for spec in specs if spec is not None]


async def container_toolkit(root: Path, run: Run, which: Callable[[str], str | None]) -> dict[str, Any]:
    """NVIDIA's container toolkit: version, and whether it hands device cgroups on."""
    path = which("nvidia-ctk") or which("nvidia-container-cli")
    config = text_of(root / "etc/nvidia-container-runtime/config.toml")
    if path is None and not config:
        return lacks("NVIDIA's container toolkit is not installed.")
    more: dict[str, Any] = {}
    if path is not None:
        _, said = await run((path, "--version"))
        more["version"] = _version(said)
        found = _VERSION.search(said)
        if found is not None and (int(found[1]), int(found[2] or 0)) < OLDEST_TOOLKIT:
            wanted = ".".join(str(part) for part in OLDEST_TOOLKIT)
            return lacks(f"It is version {more['version']}: control groups of version 2 need {wanted}.", **more)
    return toolkit_config(config, **more)


def toolkit_config(text: str, **more: Any) -> dict[str, Any]:
    """What its `config.toml` says about control groups."""
    if not text:
        return has("It has no configuration file and goes by its own defaults.", **more)
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return lacks(f"Its config.toml cannot be read: {error}.", **more)
    cli, features = config.get("nvidia-container-cli"), config.get("features")
    no_cgroups = cli.get("no-cgroups", False) if isinstance(cli, dict) else False
    more["no_cgroups"] = bool(no_cgroups)
    if isinstance(features, dict) and "cgroups_v2" in features:
        more["cgroups_v2"] = bool(features["cgroups_v2"])
        if not features["cgroups_v2"]:
            return lacks("Its config.toml switches the feature cgroups_v2 off: set it to true.", **more)
    if no_cgroups:
        return lacks("Its config.toml says no-cgroups = true: containers may lose their GPUs; set it to false.", **more)
    return has(**more)


async def systemd(run: Run, which: Callable[[str], str | None]) -> dict[str, Any]:
    path = which("systemctl")
    if path is None:
        return lacks("systemd was not found: this node's control groups are somebody else's.")
    _, said = await run((path, "--version"))
    found = _VERSION.search(said)
    if found is None:
        return lacks("systemd does not say its version.")
    if int(found[1]) < OLDEST_SYSTEMD:
        return lacks(f"It is systemd {found[1]}: control groups of version 2 need {OLDEST_SYSTEMD}.", version=found[1])
    return has(version=found[1])


async def run_tool(argv: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of a short command; 127 with a sentence where it gave none."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    try:
        answer = await ask(argv, env=env, seconds=_TOOL_SECONDS, errors=True)
    except ToolFailed as error:
        return 127, str(error).removesuffix(".")
    return answer.code, answer.text[:_MOST_SAID]


def _parse_yaml(text: str) -> dict[str, Any] | None:
    try:
        spec = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # a date that is none; nested without an end
        return None
    return spec if isinstance(spec, dict) else None


def _version(said: str) -> str:
    found = _VERSION.search(said)
    return found[0] if found is not None else ""


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].rstrip(".")[:300] if lines else ""
