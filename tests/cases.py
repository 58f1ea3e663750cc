"""Which rows of the cases and requirements the tests show: `make cases` prints a line for each id.

As a pytest plugin (`-p tests.cases --cases FILE`) it runs only tests that are marked `shows` and writes the
verdicts; as a command (`python -m tests.cases`) it runs pytest so and prints them. `fail` wins over `pass`,
`pass` over `skipped`; `none` is a row that no test shows.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

LAST_OF_KIND: Final = {"G": 31, "P": 25, "U": 10, "R": 164}
KNOWN_IDS: Final = tuple(f"{kind}{number}" for kind, last in LAST_OF_KIND.items() for number in range(1, last + 1))
_PROPERTY: Final = "shows"
_RANK: Final = {"none": 0, "skipped": 1, "pass": 2, "fail": 3}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", metavar="FILE", help="run only tests that show rows, and write the verdicts there")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--cases"):
        return
    kept: list[pytest.Item] = []
    for item in items:
        ids = [str(row) for mark in item.iter_markers("shows") for row in mark.args]
        if unknown := sorted(set(ids) - set(KNOWN_IDS)):
            raise pytest.UsageError(f"{item.nodeid} shows {', '.join(unknown)}, which no list has")
        if ids:
            # Properties of a report travel from xdist's workers; markers do not.
            item.user_properties.append((_PROPERTY, " ".join(ids)))
            kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


class Verdicts:
    """Collects outcomes by id."""

    def __init__(self) -> None:
        self.by_id = dict.fromkeys(KNOWN_IDS, "none")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            verdict = "fail"
        elif report.skipped:
            verdict = "skipped"
        elif report.when == "call":
            verdict = "pass"
        else:
            return
        for name, ids in report.user_properties:
            if name == _PROPERTY:
                for row in str(ids).split():
                    self.by_id[row] = max(self.by_id[row], verdict, key=_RANK.__getitem__)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cases") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Verdicts(), "verdicts")


def pytest_sessionfinish(session: pytest.Session) -> None:
    verdicts = session.config.pluginmanager.get_plugin("verdicts")
    if isinstance(verdicts, Verdicts):
        Path(session.config.getoption("--cases")).write_text(json.dumps(verdicts.by_id))


def main(arguments: list[str]) -> int:
    """Run the marked tests and print `ID verdict` lines; 1 when one fails, 2 when they could not run."""
    with tempfile.TemporaryDirectory() as folder:
        verdicts, log = Path(folder) / "verdicts.json", Path(folder) / "log"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.cases", "--cases", str(verdicts), *arguments]
        with log.open("w") as output:
            status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        if status not in (0, 1, 5) or not verdicts.exists():
            print(log.read_text(), file=sys.stderr)
            return 2
        by_id: dict[str, str] = json.loads(verdicts.read_text())
        for line in log.read_text().splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                print(line, file=sys.stderr)
    for row, verdict in by_id.items():
        print(row, verdict)
    return 1 if "fail" in by_id.values() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
