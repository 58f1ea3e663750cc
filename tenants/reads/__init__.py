"""Reads of this app, a module an area; the oldest are in tenants.selectors."""
