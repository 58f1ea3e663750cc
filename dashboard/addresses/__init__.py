"""Addresses of the pages, a file an area; `dashboard.urls` gathers them."""
