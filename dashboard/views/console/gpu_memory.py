"""Console: where every byte of GPU memory is, and which processes a node's devices list."""

from typing import Final
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from dashboard.access import console_page
from dashboard.charts.flame import WallPage
from gpupool.models import Node
from gpupool.reads.fuse_board import read_fuse_board
from gpupool.reads.nodes import get_node

_ANY_NODE: Final = UUID(int=0)
"""Stands for a node's id in an address; the page's script puts the id there."""


@console_page
def page(request: HttpRequest) -> HttpResponse:
    """The wall itself comes over the live channel."""
    here = reverse("console-gpu-memory")
    wall = WallPage(
        scope="cluster",
        frame_url=f"{here}frame/",
        history_url=f"{here}history/",
        processes_url=reverse("console-gpu-memory-processes", args=[_ANY_NODE]),
    )
    return render(request, "console/gpu_memory.html", {"wall": wall})


@console_page
def processes(request: HttpRequest, node_id: UUID) -> HttpResponse:
    """The fuse board of one node, for the place under the wall."""
    try:
        node = get_node(node_id)
    except Node.DoesNotExist as error:
        raise Http404 from error
    return render(request, "console/_fuse_board.html", {"fuses": read_fuse_board(node.pk), "node": node})
