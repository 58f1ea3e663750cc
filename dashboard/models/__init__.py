"""What pages keep of their own."""

from dashboard.models.export import Export, ExportPart, ExportState
from dashboard.models.saved_view import SavedView

__all__ = ["Export", "ExportPart", "ExportState", "SavedView"]
