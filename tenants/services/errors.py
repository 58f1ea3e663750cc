"""What services of this app refuse; see core.refusals."""

from core.refusals import Conflict, InvalidInput

__all__ = ["Conflict", "InvalidInput"]
