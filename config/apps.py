from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING
from uuid import UUID

from django.apps import AppConfig
from django.conf import settings
from django.contrib.admin.apps import AdminConfig

from tenants import private_models
from tenants.standing import Standing, install_reader

if TYPE_CHECKING:
    from gateway.services.limit_standing import StandingReader


class ConfigConfig(AppConfig):
    name = "config"

    def ready(self) -> None:
        if settings.GATEHOUSE.valkey_state_url:
            install_reader(_read_standings)
        private_models.install_reader(_read_owners)
        private_models.install_version_reader(_read_version_owners)


def _read_owners() -> Mapping[str, UUID]:
    from gpupool.selectors import owners_of_private_models

    return owners_of_private_models()


def _read_version_owners(version_ids: Collection[UUID]) -> Mapping[UUID, UUID]:
    from gpupool.selectors import owners_of_versions

    return owners_of_versions(version_ids)


def _read_standings(limit_ids: Sequence[UUID]) -> Mapping[UUID, Standing]:
    return _reader()(limit_ids)


@cache
def _reader() -> "StandingReader":
    # Only when it is first asked for: most commands never do, and a relay makes its metrics before it imports this.
    from gateway.services.limit_standing import StandingReader

    return StandingReader(settings.GATEHOUSE.valkey_state_url or "", prefix=settings.GATEHOUSE.valkey_prefix)


class BackofficeConfig(AdminConfig):
    default_site = "tenants.backoffice.Backoffice"
