"""Run in a process of its own: migrates an empty database, makes a node and a wanted model, prints the node's token."""

import os
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup()

from django.core.management import call_command  # noqa: E402  # after Django is set up

from gpupool import services  # noqa: E402
from tenants.actor import SYSTEM  # noqa: E402


def main(node: str, artefact_uri: str) -> None:
    call_command("migrate", verbosity=0, interactive=False)
    model = services.create_model("tiny", actor=SYSTEM)
    services.create_version(
        model,
        name="v1",
        engine="llamacpp",
        artefact_uri=artefact_uri,
        memory_bytes=256 * 1024 * 1024,
        device_kind="cpu",
        replicas=1,
        actor=SYSTEM,
    )
    print(services.create_node(node, actor=SYSTEM).token)


main(*sys.argv[1:])
