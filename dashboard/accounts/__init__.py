"""Logging in: what django-allauth asks of us, and the pages in front of it."""
