"""Decides about a request: the one function that both doors await before anything is forwarded."""

import contextlib
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from core.errors import GatehouseError, NoReadyInstance, NotSupported, QuotaExceeded, RateLimited
from core.telemetry import metrics
from gateway.relay.actions import action_of
from gateway.relay.dialects.interpreter import Interpreter
from gateway.relay.follower import Follower
from gateway.relay.limiting.base import Reservation
from gateway.relay.oip import about_model
from gateway.relay.picker import Balancer
from gateway.relay.plan import (
    Api,
    Decision,
    EndpointPicker,
    ParsedBody,
    Ready,
    Rejected,
    SlimRequest,
    Ticket,
    Work,
)
from gateway.relay.refusal_counts import RefusalCounts
from gateway.relay.request_log import SILENT, RequestLog
from gateway.relay.reserve import Hold, Reserver, only_called, release
from gateway.relay.routes import ENGINE_PATHS, OIP_MODELS
from gateway.relay.rows import ModelRow
from gateway.relay.snapshot import digest_credential
from gateway.relay.splice import parse_body
from gateway.relay.timeouts import client_timeout_seconds
from tenants.principal import Principal

_MODELS_PATH: Final = "/v1/models"
_READY: Final = "/ready"
_VERSIONS: Final = "/versions/"
_NO_INSTANCE_RETRY_SECONDS: Final = 5.0


class Authentication(Protocol):
    """gateway.authentication.MachineAuthentication, as the pipeline needs it."""

    def credential(self, request: SlimRequest) -> str:
        """The key or token that the request carries. Raises Unauthenticated."""

    def knows(self, digest: str) -> bool:
        """Whether `identify` can answer without anything being awaited before."""

    async def resolve_token(self, digest: str, credential: str) -> bool:
        """Find out about a token; False for what is none. Raises KeysUnavailable."""

    def identify(self, digest: str) -> tuple[Principal, object]:
        """Who the credential of that digest is; it has been resolved. Raises GatehouseError."""


class Permission(Protocol):
    """gateway.permissions.InferencePermission, as the pipeline needs it."""

    def check_principal(self, principal: Principal, action: str = "infer") -> None:
        """Raises GatehouseError."""

    def check_model(self, principal: Principal, name: str, action: str = "infer") -> ModelRow:
        """Raises ModelNotFound."""

    def list_models(self, principal: Principal) -> list[ModelRow]:
        """What the principal may infer with."""


class Tickets(Protocol):
    """gateway.relay.settle.Settler, as the pipeline needs it."""

    def open(
        self,
        request: SlimRequest,
        principal: Principal,
        parsed: ParsedBody,
        hold: Hold | None = None,
        model: str | None = None,
    ) -> Ticket:
        """The ticket settles the hold, too; `model` is the model's own name, where the body may have an alias.

        Raises LedgerUnavailable, with all that was held given back.
        """


class _ModelEntry(msgspec.Struct, kw_only=True):
    id: str
    created: int
    object: str = "model"
    owned_by: str


def _model_entry(called: str, row: ModelRow) -> _ModelEntry:
    """Of a model whose answers may be made up, whoever asks hears so."""
    return _ModelEntry(id=called, created=row.created, owned_by="simulated" if row.simulated else "gatehouse")


class _ModelList(msgspec.Struct):
    data: list[_ModelEntry]
    object: str = "list"


@dataclass(slots=True)
class _Asked:
    """What is known of a request so far, for the count of refusals."""

    principal: Principal | None = None
    model: str = ""


def _with_class(request: SlimRequest, principal: Principal) -> SlimRequest:
    """As urgent as its route says, else as its tenant's tier."""
    if request.traffic_class is not None:
        return request
    return msgspec.structs.replace(request, traffic_class=principal.traffic_class)


class Pipeline:
    """`door`: relay or drf."""

    def __init__(
        self,
        *,
        door: str,
        follower: Follower,
        authentication: Authentication,
        permission: Permission,
        reserver: Reserver,
        balancer: Balancer,
        tickets: Tickets,
        interpreter: Interpreter | None = None,
        request_log: RequestLog = SILENT,
        refusals: RefusalCounts | None = None,
    ) -> None:
        self.request_log = request_log
        self._refusals = refusals
        self._door = door
        self._follower = follower
        self._authentication = authentication
        self._permission = permission
        self._reserver = reserver
        self._balancer = balancer
        self._tickets = tickets
        self._interpreter = interpreter or Interpreter()

    async def prepare(self, request: SlimRequest) -> Decision:
        """Authenticate, parse, authorise, find a model's instances, reserve under its limits, open a ledger ticket.

        Nothing is awaited for a known key without limits, or far from them. The ticket comes last: whoever gets Ready
        must settle it, and with it what was reserved.
        """
        asked = _Asked()
        try:
            return await self._prepare(request, asked)
        except GatehouseError as error:
            self._note_refusal(request, error, asked.principal, asked.model)
            return Rejected(error)

    def prepare_now(self, request: SlimRequest) -> Ready | None:
        """`prepare`, where nothing has to be waited for and nothing is refused; else None, and nothing is done."""
        try:
            self._follower.check_fresh()
            digest = digest_credential(self._authentication.credential(request))
            if not self._authentication.knows(digest):
                return None
            principal, _ = self._authentication.identify(digest)
            request = _with_class(request, principal)
            if request.api not in ENGINE_PATHS:
                return None
            action = action_of(request.api)
            self._permission.check_principal(principal, action)
            work = Work(request.api, request.path, request.body, parse_body(request.api, request.body))
            model, picker = self._route(principal, work.parsed.model, work.api, action)
            timeout = client_timeout_seconds(request.headers)
            terms = self._reserver.terms(principal, model)
            hold = None
            if terms is not None:
                held = self._reserver.hold_now(terms, work)
                if held is None:
                    return None
                work, hold = held
            ticket = self._tickets.open(request, principal, work.parsed, hold, model.name)
        except GatehouseError:
            return None  # `prepare` comes to the same, and counts it
        headers = [] if hold is None else hold.reservation.headers()
        return Ready(request, principal, work, picker, ticket, headers, principal.keep_alive, timeout, model.name)

    async def models(self, request: SlimRequest) -> bytes:
        """The body of /v1/models, /v1/models/{id} or /v2/models/{id}[/ready], by the request's path.

        Raises GatehouseError.
        """
        principal = None
        try:
            principal = await self._authenticate(request)
            self._permission.check_principal(principal)
            if request.path.startswith(OIP_MODELS):
                return self._about_model(principal, request.path.removeprefix(OIP_MODELS))
            name = request.path.removeprefix(_MODELS_PATH).removeprefix("/")
            if not name:
                models = self._permission.list_models(principal)
                named = {called: row for row in models for called in (row.name, *row.aliases)}
                listed = [_model_entry(called, named[called]) for called in sorted(named)]
                return msgspec.json.encode(_ModelList(listed))
            row = self._permission.check_model(principal, name)
        except GatehouseError as error:
            self._note_refusal(request, error, principal, "")
            raise
        return msgspec.json.encode(_model_entry(name, row))

    async def resolve(self, credential: str) -> str:
        """Make sure that authentication can answer for this key or token; returns its digest.

        Raises SnapshotStale, and KeysUnavailable for a token.
        """
        self._follower.check_fresh()
        digest = digest_credential(credential)
        if not self._authentication.knows(digest) and not await self._authentication.resolve_token(digest, credential):
            await self._follower.resolve(digest)
        return digest

    def note_refusal(self, request: SlimRequest, error: GatehouseError) -> None:
        """Count it, and write it down where such requests are. Before it is known who asks, and for what."""
        self._note_refusal(request, error, self._whose(request), "")

    def _note_refusal(
        self, request: SlimRequest, error: GatehouseError, principal: Principal | None, model: str
    ) -> None:
        metrics.record_refusal(self._door, error.code)
        if error.status >= 500:
            metrics.record_fault(model, "refused")
        if isinstance(error, RateLimited | QuotaExceeded) and error.metric:
            metrics.record_limit_refusal(self._door, error.metric, error.window)
        if self._refusals is not None:
            self._refusals.note(principal, model, error)
        self.request_log.refused(request, error, whose=self._whose)

    def _whose(self, request: SlimRequest) -> Principal | None:
        """Who is behind a request, where that is known."""
        with contextlib.suppress(GatehouseError):
            digest = digest_credential(self._authentication.credential(request))
            return self._authentication.identify(digest)[0] if self._authentication.knows(digest) else None
        return None

    async def _authenticate(self, request: SlimRequest) -> Principal:
        return self._authentication.identify(await self.resolve(self._authentication.credential(request)))[0]

    async def _prepare(self, request: SlimRequest, asked: _Asked) -> Ready:
        principal = asked.principal = await self._authenticate(request)
        request = _with_class(request, principal)
        action = action_of(request.api)
        self._permission.check_principal(principal, action)
        timeout = client_timeout_seconds(request.headers)
        called: Reservation | None = None  # what was reserved before the request's size was known

        async def admit(name: str) -> None:
            nonlocal called
            model, _ = self._route(principal, name, Api.CHAT, action, asked)
            terms = self._reserver.terms(principal, model)
            if terms is not None and called is None:
                called = await self._reserver.hold_call(terms)

        try:
            if request.api in ENGINE_PATHS:
                work = Work(request.api, request.path, request.body, parse_body(request.api, request.body))
            else:
                work = await self._interpreter.interpret(request, principal, admit)
                if request.claim is not None and work.body is not request.body:
                    request.claim.take(len(work.body))
            model, picker = self._route(principal, work.parsed.model, work.api, action, asked)
            terms = self._reserver.terms(principal, model)
            hold: Hold | None = None
            if terms is not None:
                work, hold = await self._reserver.hold(terms, request, work, called)
            elif called is not None:  # its limits are gone meanwhile
                hold = only_called(called)
        except BaseException:
            if called is not None:
                release(called)
            raise
        # From here on nothing is awaited: what is held is the ticket's, or given back by whoever could not open it.
        ticket = self._tickets.open(request, principal, work.parsed, hold, model.name)
        headers = [] if hold is None else hold.reservation.headers()
        return Ready(request, principal, work, picker, ticket, headers, principal.keep_alive, timeout, model.name)

    def _about_model(self, principal: Principal, name: str) -> bytes:
        if ready := name.endswith(_READY):
            name = name.removesuffix(_READY)
        name = name.partition(_VERSIONS)[0]  # a version is the engine's, which only it knows
        self._route(principal, name, Api.INFER, action_of(Api.INFER))
        return about_model(name, ready=ready)

    def _route(
        self, principal: Principal, name: str, api: Api, action: str, asked: _Asked | None = None
    ) -> tuple[ModelRow, EndpointPicker]:
        """The model, and a picker among its endpoints that can do the work. Raises GatehouseError without any."""
        model, tenant_id = self._permission.check_model(principal, name, action), principal.tenant_id
        if asked is not None:
            asked.model = model.name
        if not self._balancer.can(model.id, api, tenant_id):
            if not self._balancer.has_ready(model.id, tenant_id):
                raise NoReadyInstance(retry_after_seconds=_NO_INSTANCE_RETRY_SECONDS)
            raise NotSupported(f"The engine of '{name}' does not support {api}.", param="model")
        return model, self._balancer.picker(model.id, api, tenant_id)
