from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class ConfigConfig(AppConfig):
    name = "config"


class BackofficeConfig(AdminConfig):
    default_site = "tenants.backoffice.Backoffice"
