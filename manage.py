#!/usr/bin/env python
"""Gatehouse's command line."""

import os
import sys

from core.env import SettingsError


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except SettingsError as error:
        sys.exit(f"gatehouse: {error}")


if __name__ == "__main__":
    main()
