"""Every write of a service leaves a row in the audit log, or is here with the reason why not.

Found in the source: a function of a `services` package writes when it runs in `@transaction.atomic` or calls what
writes rows; it is audited when it, or a function that it calls by name, calls `record_audit`. A helper is audited when
all its callers are. A new write without either fails.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
_WRITES: Final = frozenset(
    {"save", "create", "bulk_create", "bulk_update", "update_or_create", "get_or_create", "update", "delete"}
)

_MEASURED: Final = "what was measured or counted, not what somebody decided"
_LEDGER: Final = "the ledger and its sums are a record themselves"
_QUEUE: Final = "how far something has got that was asked for, and audited, before"
_AGE: Final = "deletes what is past its time, by a rule that everybody knows"
_PART: Final = "part of a write that is audited by its callers, which are told apart by more than their names"

EXEMPT: Final[Mapping[str, str]] = {
    "dashboard.services.exports._keep": _QUEUE,
    "dashboard.services.exports.claim_export": _QUEUE,
    "dashboard.services.exports.fail_export": _QUEUE,
    "dashboard.services.exports.prune_exports": _AGE,
    "dashboard.services.exports.unclaim_export": _QUEUE,
    "dashboard.services.exports.write_export": _QUEUE,
    "gateway.services.conversation_store.put_conversation": "what applications store themselves, by their requests",
    "gateway.services.drain.recover": _LEDGER,
    "gateway.services.engine_counters._note": _MEASURED,
    "gateway.services.engine_counters.reconcile_engines": _MEASURED,
    "gateway.services.engine_counters.revise_ledger": _MEASURED,
    "gateway.services.limit_keeper._rebuild": _MEASURED,
    "gateway.services.objective_tallies._tally": _MEASURED,
    "gateway.services.objective_tallies.prune_tallies": _AGE,
    "gateway.services.response_store._put": "what applications store themselves, by their requests",
    "gpupool.services.fleet.compact_store_events": _AGE,
    "gpupool.services.healing.hold_events": "nothing changes but the explanation",
    "gpupool.services.healing.note_events": "nothing changes but the explanation",
    "gpupool.services.healing.prune_events": _AGE,
    "gpupool.services.memory_history.forget_tenant": "part of a tenant's erasure, which is audited",
    "gpupool.services.memory_history.record_frame": _MEASURED,
    "gpupool.services.memory_history.record_minute": _MEASURED,
    "gpupool.services.healing._count_flood": _MEASURED,
    "gpupool.services.healing.record_events": _MEASURED,
    "gpupool.services.instances.explain_waiting": "nothing changes but the explanation",
    "gpupool.services.training_files._drop_unused": "deletes bytes that no row has, and no row",
    "gpupool.services.traces.keep_logs": _MEASURED,
    "gpupool.services.traces.note_state": _PART,
    "gpupool.services.traces.note_wish": _PART,
    "gpupool.services.traces.prune_traces": _AGE,
    "tenants.services.configuration.erase_history": _PART,
    "tenants.services.configuration.prune_history": _AGE,
    "tenants.services.deliveries._claim": _QUEUE,
    "tenants.services.deliveries.end_overdue_deliveries": _QUEUE,
    "tenants.services.deliveries.prune_deliveries": _AGE,
    "tenants.services.key_rotation._move_limits": _PART,
    "tenants.services.latency.remake_latency": _LEDGER,
    "tenants.services.ledger._advance_marks": _LEDGER,
    "tenants.services.ledger.prune_marks": _AGE,
    "tenants.services.ledger.record_usage": _LEDGER,
    "tenants.services.ledger.touch_keys": _MEASURED,
    "tenants.services.partitions.ensure_partitions": "makes tables, and changes no row",
    "tenants.services.pruning.prune_invitations": _AGE,
    "tenants.services.pruning.prune_login_links": _AGE,
    "tenants.services.refusals.record_refusals": _MEASURED,
    "tenants.services.rollups._rebuild_sums": _LEDGER,
    "tenants.services.second_factors._accept_totp": _QUEUE,
    "tenants.services.second_factors.accept_code": "a code is used up by a log-in, which is no change of ours",
    "tenants.services.showback.report_gpu_seconds": _MEASURED,
    "tenants.services.tenants._insert": _PART,
}

Name = tuple[str, str]
"""The services package that a function is of, and its own name."""


@dataclass
class Function:
    package: str
    module: str
    name: str
    writes: bool = False
    calls: set[Name] = field(default_factory=set)

    @property
    def key(self) -> Name:
        return self.package, self.name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def _functions() -> Iterator[Function]:
    for path in sorted(ROOT.glob("*/services/**/*.py")):
        package = f"{path.relative_to(ROOT).parts[0]}.services"
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        known = dict(_imports(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield _read(Function(package, module, node.name), node, known)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names in the module that come from services: functions and modules, by the package that they are of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                parts = f"{node.module}.{alias.name}".split(".")
                if "services" in parts[:2]:
                    yield alias.asname or alias.name, ".".join(parts[:2])


def _read(found: Function, node: ast.FunctionDef | ast.AsyncFunctionDef, known: Mapping[str, str]) -> Function:
    found.writes = any("transaction.atomic" in ast.unparse(decorator) for decorator in node.decorator_list)
    for part in ast.walk(node):
        if not isinstance(part, ast.Call):
            continue
        match part.func:
            case ast.Name(id=name):
                found.calls.add((known.get(name, found.package), name))
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in known or owner == "self":
                found.calls.add((known.get(owner, found.package), name))
            case ast.Attribute(value=value, attr=name) if name in _WRITES:
                found.writes |= name == "save" or "objects" in ast.unparse(value)
        found.writes |= any(_is_dml(argument) for argument in part.args)
    return found


def _is_dml(argument: ast.expr) -> bool:
    return (
        isinstance(argument, ast.Constant)
        and isinstance(argument.value, str)
        and argument.value.lstrip().upper().startswith(("INSERT ", "UPDATE ", "DELETE "))
    )


def _unaudited() -> set[str]:
    functions = list(_functions())
    audited: set[Name] = {("tenants.services", "record_audit")}
    while True:
        more = {function.key for function in functions if function.calls & audited}
        for helper in functions:
            callers = [function for function in functions if helper.key in function.calls]
            if helper.name.startswith("_") and callers and all(caller.key in audited for caller in callers):
                more.add(helper.key)
        if more <= audited:
            break
        audited |= more
    return {str(function) for function in functions if function.writes and function.key not in audited}


@pytest.mark.shows("R108")
def test_every_write_of_a_service_is_audited_or_exempt_with_a_reason() -> None:
    assert sorted(_unaudited() - EXEMPT.keys()) == []


def test_no_exemption_outlives_its_reason() -> None:
    assert sorted(EXEMPT.keys() - _unaudited()) == []
