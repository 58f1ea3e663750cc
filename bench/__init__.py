"""Measures what the relay costs beside nginx and no proxy at all. `python -m bench --help` says how."""
