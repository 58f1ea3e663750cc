"""Console and portal: GPU memory, service levels, requests."""

from django.urls import URLPattern

patterns: list[URLPattern] = []
