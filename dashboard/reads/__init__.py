"""Reads of pages that gather rows of several rooms."""
