"""TLS of node agents, real and simulated, to the web process."""

import ssl

from django.core.management.base import CommandError

from config.environment import Environment
from core.env import SettingsError
from core.tls import web_context


def tls_to_web(environment: Environment, web_url: str) -> ssl.SSLContext | None:
    """None where the address is no https. Raises CommandError for certificates that cannot be read."""
    try:
        return web_context(environment.node_ca_file) if web_url.startswith("https:") else None
    except SettingsError as error:
        raise CommandError(f"{error}.") from error
