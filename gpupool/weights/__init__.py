"""Weights as they lie on a disk: their files, digests and headers. No database rows: node agents use it, too."""
