"""Fine-tuning with the official `openai` client, at both doors, with a double for the trainer."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from django.utils import timezone

from bench.house import wait_until
from core.embedded.process import free_port
from gpupool.models import Adapter, AdapterState, FineTuningJob
from gpupool.services.training_runs import tend_jobs
from gpupool.training.folders import TrainingFolders
from gpupool.training.settings import TrainingSettings
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tenants.services import create_api_key, grant_model
from tests.gateway.two_doors import Ask, Doors, comparable
from tests.gateway.two_doors import doors as doors
from tests.training import COMMAND, EXAMPLE, limits, until_ended

FILES: Final = "/v1/files"
JOBS: Final = "/v1/fine_tuning/jobs"
DOORS: Final = ("relay", "web")


@pytest.fixture(scope="module")
def training(doors: Doors) -> Iterator[Callable[[str], openai.OpenAI]]:
    """The house with a trainer; gives a client for a door."""
    house = doors.house
    house.environ["GATEHOUSE_TRAINER_COMMAND"] = COMMAND
    house.environ["GATEHOUSE_TRAINING_FILE_CAP_BYTES"] = "65536"
    for name in DOORS:
        house.stop("relay" if name == "relay" else "web")
        house.start(name)
    grant_model(house.tenant, model_pattern="tiny", actions=["train"], actor=SYSTEM)
    key = create_api_key(house.tenant, name="training", scopes=["infer", "train"], actor=SYSTEM).secret
    doors.secrets["train"] = key  # type: ignore[index]
    bases = {"relay": house.relay_url, "web": house.web_url}
    clients = {
        door: openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=30)
        for door, base in bases.items()
    }
    yield clients.__getitem__
    for client in clients.values():
        client.close()


@pytest.fixture(scope="module")
def settings(doors: Doors) -> TrainingSettings:
    root = Path(doors.house.environ["GATEHOUSE_VAR_DIR"]) / "training"
    return TrainingSettings(TrainingFolders(root), tuple(COMMAND.split()), (), limits(), 2, 1, 65536, 1 << 20)


@pytest.mark.shows("R6")
@pytest.mark.parametrize("door", DOORS)
def test_a_job_goes_from_its_file_to_an_adapter(
    doors: Doors, training: Callable[[str], openai.OpenAI], settings: TrainingSettings, door: str
) -> None:
    client = training(door)
    file = client.files.create(file=("train.jsonl", EXAMPLE * 3), purpose="fine-tune")
    assert (file.filename, file.bytes, file.purpose, file.status) == (
        "train.jsonl",
        len(EXAMPLE) * 3,
        "fine-tune",
        "processed",
    )
    assert client.files.retrieve(file.id).id == file.id
    assert client.files.content(file.id).read() == EXAMPLE * 3
    assert file.id in {one.id for one in client.files.list()}
    job = client.fine_tuning.jobs.create(
        model="tiny", training_file=file.id, suffix=f"at-{door}", hyperparameters={"n_epochs": 2}, metadata={"a": door}
    )
    assert (job.status, job.model, job.training_file, job.organization_id) == ("queued", "tiny", file.id, "acme")
    assert job.hyperparameters.n_epochs == 2
    with pytest.raises(openai.ConflictError, match="cancel the job first"):
        client.files.delete(file.id)
    until_ended(settings)
    done = client.fine_tuning.jobs.retrieve(job.id)
    assert (done.status, done.error, done.trained_tokens) == ("succeeded", None, 60)
    assert done.fine_tuned_model is not None
    assert done.fine_tuned_model.startswith(f"ft:tiny:acme:at-{door}:")
    adapter = Adapter.objects.select_related("version__model").get(name=done.fine_tuned_model)
    assert (adapter.rank, adapter.state, adapter.version.model.name) == (4, AdapterState.STORED, "tiny")
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=2))  # page by page
    assert [event.message for event in reversed(events)][:3] == [
        "The job waits for a trainer.",
        "Training has started.",
        "Looked at the examples",
    ]
    measured = [event.data for event in events if event.type == "metrics"]
    assert measured == [{"step": 2, "train_loss": 1.25, "trained_tokens": 60}, {"step": 1, "train_loss": 2.5, "trained_tokens": 30}]
    [checkpoint] = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert (checkpoint.step_number, checkpoint.fine_tuned_model_checkpoint) == (2, done.fine_tuned_model)
    assert [one.id for one in client.fine_tuning.jobs.list(extra_query={"metadata[a]": door})] == [job.id]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
