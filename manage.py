#!/usr/bin/env python
"""Gatehouse's command line."""

import os
import sys
from pathlib import Path

from core.env import SettingsError


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line

    argv = list(sys.argv)
    if len(argv) > 1 and not argv[1].startswith("-"):
        argv[1] = argv[1].replace("-", "_")  # simulate-fleet, as people write it
    try:
        execute_from_command_line(argv)
    except SettingsError as error:
        sys.exit(f"gatehouse: {error}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if (Path(__file__).parent / package).exists():
            raise  # a module of ours
        sys.exit(f"gatehouse: the Python package '{package}' is missing: remove .venv and run the same make again")


if __name__ == "__main__":
    main()
