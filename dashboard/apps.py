from django.apps import AppConfig


class DashboardConfig(AppConfig):
    name = "dashboard"

    def ready(self) -> None:
        from dashboard import viewing  # models are there only now
        from dashboard.holdings import register
        from dashboard.live import log_outs

        register()
        viewing.connect()
        log_outs.connect()
