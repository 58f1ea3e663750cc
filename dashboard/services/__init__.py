"""Writes of what pages keep of their own."""

from dashboard.services.exports import ask_export, fail_export, prune_exports, write_export
from dashboard.services.saved_views import delete_view, save_view

__all__ = ["ask_export", "delete_view", "fail_export", "prune_exports", "save_view", "write_export"]
