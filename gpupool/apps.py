from django.apps import AppConfig


class GpupoolConfig(AppConfig):
    name = "gpupool"

    def ready(self) -> None:
        from gpupool.holdings import register  # models are there only now

        register()
