"""`manage.py manifest`: what an artefact on this machine is made of, for the catalogue and to be signed."""

import json
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gpupool.agent.artefacts import ArtefactMissing, ArtefactUriRefused, locate
from gpupool.policies.adapter import BadAdapter
from gpupool.policies.manifest import canonical
from gpupool.training.folders import check_adapter
from gpupool.weights.files import UnfitFolder, files_of
from gpupool.weights.hashing import hasher, make_manifest, workers
from gpupool.weights.headers import HeaderRefused, check_headers


class Command(BaseCommand):
    help = (
        "Prints the manifest of a model on this machine as JSON, after its headers were checked: SHA-256 of each file, "
        "chunks hashed side by side."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "artefact", help="a file, a model's folder, or what a version names: package:..., file:///..."
        )
        parser.add_argument("--adapter", action="store_true", help="it is a LoRA adapter's folder: print what it says")
        parser.add_argument("--speed", action="store_true", help="measure one thread against all; print no manifest")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            path = self._path(options["artefact"])
            if options["adapter"]:
                self._adapter(path)
            elif options["speed"]:
                self._speed(path)
            else:
                check_headers(path)
                # These very bytes are what is signed: they end with one line's end.
                self.stdout.write(canonical(make_manifest(path)).decode(), ending="")
        except (ArtefactMissing, ArtefactUriRefused, BadAdapter, HeaderRefused, UnfitFolder) as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{error.filename or options['artefact']} cannot be read: {error.strerror}.") from error

    def _path(self, artefact: str) -> Path:
        return locate(artefact) if artefact.startswith(("package:", "file:")) else Path(artefact).resolve()

    def _adapter(self, folder: Path) -> None:
        checked = check_adapter(folder)
        told = {
            "artefact_uri": folder.as_uri(),
            "sha256": checked.sha256,
            "size_bytes": checked.size_bytes,
            "rank": checked.facts.rank,
            "alpha": checked.facts.alpha,
            "target_modules": checked.facts.target_modules,
        }
        self.stdout.write(json.dumps(told, indent=2))

    def _speed(self, path: Path) -> None:
        files = list(files_of(path).values())
        total = sum(file.stat().st_size for file in files)
        for file in files:  # once, so that both measure the processor and not the disk
            with open(file, "rb") as opened:
                while opened.read(1 << 24):
                    pass
        told: dict[str, float | int] = {"bytes": total, "threads": workers()}
        for name, threads in (("one_thread_mb_s", 1), ("all_threads_mb_s", workers())):
            with hasher(threads=threads) as pool:
                began = time.perf_counter()
                for file in files:
                    pool.tree(file)
                told[name] = round(total / 1e6 / (time.perf_counter() - began), 1)
        self.stdout.write(json.dumps(told, indent=2))
