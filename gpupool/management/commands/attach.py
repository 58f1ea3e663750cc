"""`manage.py attach`: take an engine that already runs into the pool, by its address."""

import asyncio
import json
import shlex
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from gpupool import services
from gpupool.controller.prober import probe
from gpupool.controller.targets import target_of
from gpupool.engines.registry import engines
from gpupool.models import Instance
from tenants.actor import SYSTEM
from tenants.models import Tenant
from tenants.services import InvalidInput, grant_model


class Command(BaseCommand):
    help = "Attaches an engine that already runs: its model can then be asked for through the relay."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("url", help="where it answers, for example http://127.0.0.1:8000 or https://host")
        parser.add_argument("--engine", required=True, help=f"what it is: {', '.join(engines())}")
        parser.add_argument("--model", required=True, help="the name that applications use")
        parser.add_argument("--served-name", default="", help="the name the engine knows it by, if another")
        parser.add_argument(
            "--model-version", dest="version_name", default="", help="version of the model; made if missing"
        )
        parser.add_argument(
            "--credential-env",
            default="",
            help="variable GATEHOUSE_ENGINE_KEY... in the environment of relay and controller: the engine's key",
        )
        parser.add_argument("--slots", type=int, help="requests that it decodes at the same time")
        parser.add_argument("--tenant", help="slug of a tenant that may use the model")

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.GATEHOUSE.database_url is None:
            raise CommandError("No database is known: run `make up` first, or set DATABASE_URL.")
        try:
            with transaction.atomic():
                # The grant first: sections are locked in their order, grants before models before endpoints.
                if options["tenant"]:
                    self._grant(options["tenant"], options["model"].strip())
                attached = services.attach_engine(
                    options["url"],
                    engine=options["engine"],
                    model_name=options["model"],
                    served_name=options["served_name"],
                    version_name=options["version_name"],
                    credential_variable=options["credential_env"],
                    slots=options["slots"],
                    actor=SYSTEM,
                )
        except InvalidInput as error:
            raise CommandError(error.message) from error
        instance = attached.instance
        done = "Attached" if attached.created else "Already attached:"
        self.stdout.write(f"{done} {options['url']} as {options['model']} (instance {instance.pk}).")
        self._say_what_it_serves(instance)
        self._say_what_next(options)

    def _grant(self, slug: str, model: str) -> None:
        tenant = Tenant.objects.filter(slug=slug).first()
        if tenant is None:
            raise CommandError(f"There is no tenant {slug!r}.")
        grant_model(tenant, model_pattern=model, actor=SYSTEM)

    def _say_what_it_serves(self, instance: Instance) -> None:
        verdict = asyncio.run(probe(target_of(instance)))
        if verdict.answered:
            services.set_probed_state(instance.pk, healthy=True, reason=verdict.reason, actor=SYSTEM)
            self.stdout.write(
                f"It answers and serves {', '.join(verdict.served or ())}. It takes requests from now on."
            )
            return
        self.stdout.write(self.style.WARNING(f"It takes no requests yet. {verdict.reason}"))
        self.stdout.write("The controller asks again every two seconds and takes it in as soon as it answers.")

    def _say_what_next(self, options: dict[str, Any]) -> None:
        relay = settings.GATEHOUSE.public_relay_url
        if not options["tenant"]:
            self.stdout.write("To let a tenant use it, run this again with --tenant SLUG.")
        body = json.dumps({"model": options["model"], "messages": [{"role": "user", "content": "Hello"}]})
        self.stdout.write(
            f'Ask it: curl {relay}/v1/chat/completions -H "Authorization: Bearer $GATEHOUSE_API_KEY" '
            f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"
        )
