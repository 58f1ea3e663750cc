"""The control API of fine-tuning, for who operates: jobs of all tenants, their logs, and an end to one."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.downloads import download
from core.api.filters import Query
from core.api.paging import NewestFirst
from gpupool import selectors
from gpupool.models import FineTuningEvent, FineTuningJob
from gpupool.policies.training import JobState
from gpupool.services.training_jobs import cancel_fine_tuning_job
from gpupool.training.folders import LOG_FILE
from gpupool.training.settings import training_folders
from tenants.api.access import platform_access
from tenants.api.base import ControlView
from tenants.policies.roles import Action, Object

_PIECE: Final = 65_536
_STATES: Final = [(state.value, state.value.title()) for state in JobState]
_LOG_TYPE: Final = "text/plain"


class FineTuningJobSerializer(serializers.ModelSerializer[FineTuningJob]):
    """One training. Process and machine are told of it while it may run there."""

    state = serializers.ChoiceField(choices=_STATES, read_only=True)
    version_id = serializers.UUIDField(read_only=True)
    adapter = serializers.SerializerMethodField(help_text="the name of what came of it; null where nothing did")

    class Meta:
        model = FineTuningJob
        fields = (
            "id", "tenant_id", "tenant_slug", "key_id", "subject_id", "model", "version_id", "suffix",
            "training_file_id", "validation_file_id", "hyperparameters", "method", "seed", "metadata", "state",
            "created_at", "started_at", "finished_at", "trained_tokens", "steps", "error_code", "error_message",
            "runner_live", "runner_host", "runner_pid", "seen_at", "adapter",
        )  # fmt: skip
        read_only_fields = fields

    def get_adapter(self, job: FineTuningJob) -> str | None:
        adapter = getattr(job, "adapter", None)
        return None if adapter is None else str(adapter.name)


class FineTuningEventSerializer(serializers.ModelSerializer[FineTuningEvent]):
    class Meta:
        model = FineTuningEvent
        fields = ("id", "kind", "level", "message", "data", "created_at")
        read_only_fields = fields


class JobQuery(Query):
    tenant = serializers.SlugField(required=False, max_length=64, help_text="A tenant's slug.")
    state = serializers.ChoiceField(required=False, choices=_STATES)
    model = serializers.CharField(required=False, max_length=200)


def _job(job_id: UUID) -> FineTuningJob:
    job = selectors.list_fine_tuning_jobs().filter(pk=job_id).first()
    if job is None:
        raise NotFound
    return job


class JobListView(ControlView, ListAPIView[FineTuningJob]):
    serializer_class = FineTuningJobSerializer
    pagination_class = NewestFirst
    query_class = JobQuery
    queryset = FineTuningJob.objects.none()

    def get_queryset(self) -> QuerySet[FineTuningJob]:
        return selectors.list_fine_tuning_jobs(**self.query)

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first; for platform roles. Tenants read theirs at /v1/fine_tuning/jobs."""
        platform_access(request, Action.VIEW, Object.JOB)
        return super().get(request, *args, **kwargs)


class JobView(ControlView):
    @extend_schema(responses={200: FineTuningJobSerializer})
    def get(self, request: Request, job_id: UUID) -> Response:
        """One job, of whichever tenant."""
        platform_access(request, Action.VIEW, Object.JOB)
        return Response(FineTuningJobSerializer(_job(job_id)).data)


class JobEventListView(ControlView, ListAPIView[FineTuningEvent]):
    serializer_class = FineTuningEventSerializer
    pagination_class = NewestFirst
    queryset = FineTuningEvent.objects.none()

    def get_queryset(self) -> QuerySet[FineTuningEvent]:
        return FineTuningEvent.objects.filter(job=_job(self.kwargs["job_id"]))

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """What happened in it, newest first."""
        platform_access(request, Action.VIEW, Object.JOB)
        return super().get(request, *args, **kwargs)


class JobCancelView(ControlView):
    @extend_schema(request=None, responses={200: FineTuningJobSerializer})
    def post(self, request: Request, job_id: UUID) -> Response:
        """End it: 409 where it has ended already."""
        platform_access(request, Action.CHANGE, Object.JOB)
        _job(job_id)
        cancel_fine_tuning_job(job_id, actor=self.actor)
        return Response(FineTuningJobSerializer(_job(job_id)).data)


class JobLogView(ControlView):
    @extend_schema(responses={(200, _LOG_TYPE): OpenApiTypes.STR})
    def get(self, request: Request, job_id: UUID) -> Any:
        """What the trainer said on standard error, as far as it is kept; empty before it said anything."""
        platform_access(request, Action.VIEW, Object.JOB)
        path = training_folders().job(_job(job_id).pk) / LOG_FILE
        return download(request, f"{job_id}.log", f"{_LOG_TYPE}; charset=utf-8", _pieces(path))


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError:
        return
    with file:
        while piece := file.read(_PIECE):
            yield piece
