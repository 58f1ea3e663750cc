"""What limits count, and over which time, in the reader's language."""

from typing import Final

from django.utils.translation import gettext_lazy

from tenants.models import Metric, Window

METRICS: Final = {
    Metric.REQUESTS: gettext_lazy("Requests"),
    Metric.TOKENS: gettext_lazy("Tokens"),
    Metric.INPUT_TOKENS: gettext_lazy("Input tokens"),
    Metric.OUTPUT_TOKENS: gettext_lazy("Output tokens"),
    Metric.MONEY: gettext_lazy("Money"),
    Metric.CONCURRENCY: gettext_lazy("Requests at once"),
    Metric.HELD: gettext_lazy("Requests held for a model to wake"),
    Metric.GPUS: gettext_lazy("GPUs"),
    Metric.GPU_MEMORY: gettext_lazy("GPU memory"),
}
WINDOWS: Final = {
    Window.MINUTE: gettext_lazy("a minute"),
    Window.BUCKET: gettext_lazy("bucket"),
    Window.DAY: gettext_lazy("a day"),
    Window.MONTH: gettext_lazy("a month"),
    Window.STANDING: gettext_lazy("at any moment"),
}


def metric_word(value: str) -> str:
    """ "input_tokens" -> "Input tokens"; what is unknown stays as it is."""
    return str(METRICS[Metric(value)]) if value in METRICS else value


def window_word(value: str) -> str:
    """ "minute" -> "a minute"."""
    return str(WINDOWS[Window(value)]) if value in WINDOWS else value
