from django.apps import AppConfig


class GpupoolConfig(AppConfig):
    name = "gpupool"
