"""What probes and scrapers ask the web process, and what there is nothing at."""

import json

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from core.errors import GatehouseError, NotFound
from core.telemetry.metrics import CONTENT_TYPE_LATEST, render_metrics
from core.telemetry.scrapers import check_scraper
from gateway.api.http import error_response
from gateway.api.runtime import installed_runtime
from gateway.relay.oip import about_server
from gateway.relay.plan import Api
from gpupool.reads.device_metrics import render_device_metrics


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """The process is alive."""
    return _status(None)


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """Requests can be served: the snapshot is there and not too old."""
    runtime = installed_runtime()
    return _status("this process does not serve inference" if runtime is None else runtime.ready())


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """For Prometheus."""
    headers = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
    try:
        check_scraper(headers, client_host=request.META.get("REMOTE_ADDR"), token=settings.GATEHOUSE.metrics_token)
    except GatehouseError as error:
        return error_response(error)
    return HttpResponse(render_metrics() + render_device_metrics(), content_type=CONTENT_TYPE_LATEST)


@csrf_exempt
def nothing_here(request: HttpRequest) -> HttpResponse:
    """The answer to inference addresses that do not exist, in OpenAI's shape."""
    return error_response(NotFound())


@require_safe
def about_server_here(request: HttpRequest) -> HttpResponse:
    """The Open Inference Protocol's questions about the server itself."""
    runtime = installed_runtime()
    unready = "this process does not serve inference" if runtime is None else runtime.ready()
    status, body = about_server(request.path, unready)
    return HttpResponse(body, status=status, content_type="application/json")


@csrf_exempt
def no_inference_here(request: HttpRequest) -> HttpResponse:
    """The same in the Open Inference Protocol's shape."""
    return error_response(NotFound(), Api.INFER)


def _status(reason: str | None) -> HttpResponse:
    body = json.dumps({"status": reason or "ok"}, separators=(",", ":"))
    return HttpResponse(body, status=503 if reason else 200, content_type="application/json")
