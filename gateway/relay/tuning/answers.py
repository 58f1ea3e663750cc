"""Answers requests about files and fine-tuning jobs, for the relay and for the DRF views."""

import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from uuid import UUID

import msgspec

from core.errors import BodyTooLarge, GatehouseError, InvalidRequest, MethodNotAllowed, NotFound
from core.telemetry import metrics
from gateway.relay.plan import SlimRequest
from gateway.relay.rows import ModelRow
from gateway.relay.tuning.asked import Query, parse_job
from gateway.relay.tuning.form import parse_form
from gateway.relay.tuning.names import (
    CHECKPOINT,
    EVENT,
    FILE,
    FILES,
    JOB,
    TuningPath,
    find_tuning,
    number_of,
    tuning_methods,
)
from gateway.relay.tuning.store import Caller, FileNotFound, JobNotFound, NotConfigured, TuningStore
from tenants.principal import Principal

TRAIN: Final = "train"
"""The action of RBAC: a scope of the key, and for a new job a grant on its model."""

_JSON: Final = "application/json"
_RETRY_SECONDS: Final = 300.0
_FORM_BYTES: Final = 65_536  # of a form around its file


class Authentication(Protocol):
    """gateway.authentication.MachineAuthentication, as is needed here."""

    def credential(self, request: SlimRequest) -> str:
        """The credential that the request carries. Raises Unauthenticated."""

    def identify(self, digest: str) -> tuple[Principal, object]:
        """Who the credential of that digest is; it has been resolved. Raises GatehouseError."""


class Permission(Protocol):
    """gateway.permissions.InferencePermission, as is needed here."""

    def check_principal(self, principal: Principal, action: str = "infer") -> None:
        """Raises GatehouseError."""

    def check_model(self, principal: Principal, name: str, action: str = "infer") -> ModelRow:
        """Raises ModelNotFound."""


class Answer(msgspec.Struct, frozen=True):
    """A body with status 200."""

    body: bytes
    content_type: str = _JSON


class Tuning:
    """`door`: relay or drf, for the count of refusals. `configured`: whether there is a trainer."""

    def __init__(
        self,
        store: TuningStore,
        *,
        door: str,
        configured: bool,
        file_cap_bytes: int,
        resolve: Callable[[str], Awaitable[str]],
        authentication: Authentication,
        permission: Permission,
    ) -> None:
        self._store = store
        self._door = door
        self._configured = configured
        self._file_cap_bytes = file_cap_bytes
        self._resolve = resolve
        self._authentication = authentication
        self._permission = permission

    async def answer(self, method: str, request: SlimRequest, query: bytes) -> Answer:
        """Raises GatehouseError. What is read for it is put on the request's claim."""
        try:
            return await self._answer(method, request, query)
        except GatehouseError as error:
            metrics.record_refusal(self._door, error.code)
            raise

    async def _answer(self, method: str, request: SlimRequest, query: bytes) -> Answer:
        path, allowed = find_tuning(request.path), tuning_methods(request.path)
        if path is None:
            raise NotFound
        if method.encode() not in allowed.split(b", "):
            raise MethodNotAllowed(headers=((b"allow", allowed),))
        principal, _ = self._authentication.identify(await self._resolve(self._authentication.credential(request)))
        self._permission.check_principal(principal, TRAIN)
        caller = Caller(
            principal.tenant_id, principal.tenant_slug, principal.key_id, principal.subject_id, request.request_id
        )
        if path.root == FILES:
            return await self._files(method, path, request, caller, query)
        return Answer(await self._jobs(method, path, request, principal, caller, query))

    async def _files(self, method: str, path: TuningPath, request: SlimRequest, caller: Caller, query: bytes) -> Answer:
        store = self._store
        if not path.name:
            if method == "POST":
                return Answer(await self._upload(request, caller))
            asked = Query(query, known=frozenset({"limit", "after", "order", "purpose"}), prefix=FILE)
            page = asked.page(default=10_000, most=10_000)
            return Answer(await store.list_files(caller, page, purpose=asked["purpose"]))
        if (file_id := number_of(FILE, path.name)) is None:
            raise FileNotFound
        if path.rest == "content":
            content = await store.file_content(caller, file_id)
            if request.claim is not None:
                request.claim.take(len(content))
            return Answer(content, "application/octet-stream")
        if method == "DELETE":
            return Answer(await store.delete_file(caller, file_id))
        return Answer(await store.get_file(caller, file_id))

    async def _upload(self, request: SlimRequest, caller: Caller) -> bytes:
        self._check_configured()
        if len(request.body) > self._file_cap_bytes + _FORM_BYTES:
            raise self._too_large()
        if request.claim is not None:
            request.claim.take(len(request.body))  # the file is cut out of the form: it is there twice
        content_type = next((value for name, value in request.headers if name == b"content-type"), b"")
        form = parse_form(content_type.decode("latin-1"), request.body)
        if unknown := set(form.fields) - {"purpose"}:
            name = min(unknown)[:64]
            raise InvalidRequest(f"The field '{name}' is not known here.", param=name)
        if form.filename is None:
            raise InvalidRequest("The form has no file.", param="file")
        if "purpose" not in form.fields:
            raise InvalidRequest("The form does not say the file's purpose.", param="purpose")
        if len(form.file) > self._file_cap_bytes:
            raise self._too_large()
        return await self._store.create_file(
            caller, filename=form.filename, purpose=form.fields["purpose"], body=form.file
        )

    async def _jobs(
        self, method: str, path: TuningPath, request: SlimRequest, principal: Principal, caller: Caller, query: bytes
    ) -> bytes:
        store = self._store
        if not path.name:
            if method == "POST":
                return await self._create(request, principal, caller)
            asked = Query(query, known=frozenset({"limit", "after", "metadata"}), prefix=JOB)
            return await store.list_jobs(caller, asked.page(default=20, most=100), metadata=asked.metadata)
        if (job_id := number_of(JOB, path.name)) is None:
            raise JobNotFound
        if path.rest == "cancel":
            return await store.cancel_job(caller, job_id)
        if path.rest:
            return await self._below(path.rest, caller, job_id, query)
        return await store.get_job(caller, job_id)

    async def _below(self, rest: str, caller: Caller, job_id: UUID, query: bytes) -> bytes:
        known = frozenset({"limit", "after"})
        if rest == "events":
            page = Query(query, known=known, prefix=EVENT).page(default=20, most=100)
            return await self._store.list_events(caller, job_id, page)
        page = Query(query, known=known, prefix=CHECKPOINT).page(default=10, most=100)
        return await self._store.list_checkpoints(caller, job_id, page)

    async def _create(self, request: SlimRequest, principal: Principal, caller: Caller) -> bytes:
        job = parse_job(request.body, lambda: random.randrange(2**31))  # noqa: S311  # a trainer's seed, no secret
        model = self._permission.check_model(principal, job.model, TRAIN)
        self._check_configured()
        return await self._store.create_job(caller, msgspec.structs.replace(job, model=model.name))

    def _check_configured(self) -> None:
        if not self._configured:
            raise NotConfigured(retry_after_seconds=_RETRY_SECONDS)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"A file to train on may have {self._file_cap_bytes} bytes.", param="file")
