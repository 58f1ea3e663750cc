"""Fine-tuning with the official `openai` client, at both doors, with a double for the trainer."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import openai
import pytest
from celery import Celery

from bench.house import wait_until
from bench.rows import make_tenant
from core.embedded.process import spawn, stop
from gpupool.models import Adapter, AdapterState, FineTuningJob, Model
from gpupool.services.aliases import create_alias
from gpupool.training.folders import TrainingFolders
from gpupool.training.settings import TrainingSettings
from tenants.actor import SYSTEM
from tenants.services import create_api_key, grant_model
from tests.gateway.two_doors import Ask, Doors, comparable
from tests.gateway.two_doors import doors as doors
from tests.penetration.operations import schema
from tests.training import COMMAND, EXAMPLE, limits, until_ended

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final = "/v1/files"
JOBS: Final = "/v1/fine_tuning/jobs"
DOORS: Final = ("relay", "web")


@pytest.fixture(scope="module")
def house_more() -> dict[str, str]:
    return {
        "GATEHOUSE_BODY_CAP_BYTES": str(1024 * 1024),
        "GATEHOUSE_TRAINER_COMMAND": COMMAND,
        "GATEHOUSE_TRAINING_FILE_CAP_BYTES": "65536",
    }


@pytest.fixture(scope="module")
def training(doors: Doors) -> Iterator[Callable[[str], openai.OpenAI]]:
    """The house with a trainer; gives a client for a door."""
    house = doors.house
    grant_model(house.tenant, model_pattern="tiny", actions=["train"], actor=SYSTEM)
    key = create_api_key(house.tenant, name="training", scopes=["infer", "train"], actor=SYSTEM).secret
    doors.secrets["train"] = key  # type: ignore[index]
    wish = {"model": "tiny", "training_file": "file-unknown"}
    doors.wait_for(Ask("the right to train", JOBS, body=wish, key="train", status=400))
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
    assert measured == [
        {"step": 2, "train_loss": 1.25, "trained_tokens": 60},
        {"step": 1, "train_loss": 2.5, "trained_tokens": 30},
    ]
    [checkpoint] = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert (checkpoint.step_number, checkpoint.fine_tuned_model_checkpoint) == (2, done.fine_tuned_model)
    assert [one.id for one in client.fine_tuning.jobs.list(extra_query={"metadata[a]": door})] == [job.id]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def form(body: bytes = EXAMPLE, *, name: str = "a.jsonl", purpose: str = "fine-tune") -> bytes:
    head = f'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
    head += f'--XX\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return head.encode() + body + b"\r\n--XX--\r\n"


FORM: Final = {"content-type": "multipart/form-data; boundary=XX"}
NO_FILE: Final = f"file-{0:032x}"
NO_JOB: Final = f"ftjob-{0:032x}"


def wish(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "training_file": NO_FILE, **more}


ASKS: Final = (
    Ask("no key", FILES, "GET", key="", status=401),
    Ask("a revoked key", JOBS, "GET", key="revoked", status=401),
    Ask("a key without the scope", FILES, "GET", key="valid", status=403),
    Ask("a job with a key without the scope", JOBS, body=wish(), key="valid", status=403),
    Ask("the wrong method", FILES, "PUT", key="train", status=405),
    Ask("the wrong method for a job", f"{JOBS}/{NO_JOB}", "DELETE", key="train", status=405),
    Ask("nothing there", f"{JOBS}/{NO_JOB}/pause", key="train", status=404),
    Ask("no such file", f"{FILES}/{NO_FILE}", "GET", key="train", status=404),
    Ask("no such content", f"{FILES}/{NO_FILE}/content", "GET", key="train", status=404),
    Ask("no id of a file", f"{FILES}/..%2f..%2fetc", "GET", key="train", status=404),
    Ask("deleting no such file", f"{FILES}/{NO_FILE}", "DELETE", key="train", status=404),
    Ask("no such job", f"{JOBS}/{NO_JOB}", "GET", key="train", status=404),
    Ask("cancelling no such job", f"{JOBS}/{NO_JOB}/cancel", key="train", status=404),
    Ask("events of no such job", f"{JOBS}/{NO_JOB}/events", "GET", key="train", status=404),
    Ask("a limit that is none", f"{JOBS}?limit=0", "GET", key="train", status=400),
    Ask("a limit twice", f"{JOBS}?limit=1&limit=2", "GET", key="train", status=400),
    Ask("an unknown parameter", f"{FILES}?from=1", "GET", key="train", status=400),
    Ask("behind nothing", f"{JOBS}?after={NO_JOB}", "GET", key="train", status=400),
    Ask("an unknown model", JOBS, body=wish(model="nothing"), key="train", status=404),
    Ask("a model without a grant", JOBS, body=wish(model="hidden"), key="train", status=404),
    Ask("a model that may be asked and not trained", JOBS, body=wish(model="idle"), key="train", status=404),
    Ask("no such training file", JOBS, body=wish(), key="train", status=400),
    Ask("no id of a training file", JOBS, body=wish(training_file="../../etc/passwd"), key="train", status=400),
    Ask("no such validation file", JOBS, body=wish(validation_file="x"), key="train", status=400),
    Ask("a suffix that is too long", JOBS, body=wish(suffix="x" * 65), key="train", status=400),
    Ask("a path for a suffix", JOBS, body=wish(suffix="../../x"), key="train", status=400),
    Ask("an unknown member", JOBS, body=wish(n_epochs=1), key="train", status=400),
    Ask("an unknown method", JOBS, body=wish(method={"type": "reinforcement"}), key="train", status=400),
    Ask("integrations", JOBS, body=wish(integrations=[{"type": "wandb"}]), key="train", status=400),
    Ask("a seed that is none", JOBS, body=wish(seed=-1), key="train", status=400),
    Ask("an absurd seed", JOBS, body=b'{"model":"tiny","training_file":"x","seed":1e400}', key="train", status=400),
    Ask("no JSON", JOBS, body=b"{", key="train", status=400),
    Ask("deep JSON", JOBS, body=b"[" * 100_000, key="train", status=400),
    Ask("no form", FILES, body={"purpose": "fine-tune"}, key="train", status=400),
    Ask("a form that is cut off", FILES, body=form()[:-20], key="train", headers=FORM, status=400),
    Ask("a file for something else", FILES, body=form(purpose="batch"), key="train", headers=FORM, status=400),
    Ask("a path for a name", FILES, body=form(name="../../a"), key="train", headers=FORM, status=400),
    Ask("no examples", FILES, body=form(b"\x89PNG\r\n"), key="train", headers=FORM, status=400),
    Ask("an empty file", FILES, body=form(b""), key="train", headers=FORM, status=400),
    Ask("a large file", FILES, body=form(EXAMPLE * 1000), key="train", headers=FORM, status=413),
    Ask("a larger file", FILES, body=form(b"x" * 200_000), key="train", headers=FORM, status=413),
    Ask("a body over the cap", FILES, body=form(b"x" * 1_100_000), key="train", headers=FORM, status=413),
    Ask("an encoding that is none", FILES, body=form(), key="train", headers={"content-encoding": "x"}, status=415),
)  # fmt: skip


@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
def test_both_doors_refuse_alike(doors: Doors, ask: Ask) -> None:
    relay, web = doors.send("relay", ask), doors.send("web", ask)
    assert relay.status_code == ask.status, relay.text
    assert comparable(web) == comparable(relay)


@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", [FILES, JOBS, f"{FILES}/{NO_FILE}", f"{JOBS}/{NO_JOB}/events"])
def test_both_doors_answer_alike(doors: Doors, method: str, path: str) -> None:
    ask = Ask(method, path, method, key="train")
    assert comparable(doors.send("web", ask)) == comparable(doors.send("relay", ask))


@pytest.mark.usefixtures("training")
def test_the_first_line_that_is_no_example_is_told_by_its_number(doors: Doors) -> None:
    body = form(EXAMPLE * 2 + b'{"messages": []}\n' + EXAMPLE)
    error = doors.send("relay", Ask("broken", FILES, body=body, key="train", headers=FORM)).json()["error"]
    assert error["message"].startswith("Line 3: ")
    assert error["param"] == "file"


def test_a_job_that_is_asked_for_by_another_name_is_the_models(
    doors: Doors, training: Callable[[str], openai.OpenAI]
) -> None:
    create_alias(Model.objects.get(name="tiny").pk, "tiny-latest", actor=SYSTEM)
    asked = Ask("of no file", JOBS, body=wish(model="tiny-latest"), key="train")
    wait_until(lambda: doors.send("relay", asked).status_code == 400, "the door knows the other name")
    client = training("relay")
    file = client.files.create(file=("a.jsonl", EXAMPLE), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="tiny-latest", training_file=file.id)
    assert job.model == "tiny"
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"


def test_another_tenant_sees_nothing_of_it(doors: Doors, training: Callable[[str], openai.OpenAI]) -> None:
    client = training("relay")
    file = client.files.create(file=("a.jsonl", EXAMPLE), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="tiny", training_file=file.id)
    other = make_tenant("others", models=("tiny",))
    grant_model(other, model_pattern="*", actions=["train"], actor=SYSTEM)
    key = create_api_key(other, name="training", scopes=["train"], actor=SYSTEM).secret
    tried = [
        (path, method)
        for path, item in schema()["paths"].items()
        for method in item
        if path.startswith((f"{FILES}/", f"{JOBS}/"))
    ]
    assert len(tried) > 6
    for template, method in tried:
        path = template.replace("{name}", file.id if template.startswith(FILES) else job.id)
        told = doors.send("relay", Ask("another's", path, method.upper(), key=key))
        unknown = doors.send(
            "relay", Ask("unknown", path.replace(file.id, NO_FILE).replace(job.id, NO_JOB), method.upper(), key=key)
        )
        assert told.status_code == 404, (method, template)
        assert comparable(told) == comparable(unknown)
    assert (
        doors.send("relay", Ask("another's file", JOBS, body=wish(training_file=file.id), key=key)).status_code == 400
    )
    for path in (FILES, JOBS):
        assert doors.send("relay", Ask("list", path, "GET", key=key)).json()["data"] == []
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    with pytest.raises(openai.ConflictError, match="ended already"):
        client.fine_tuning.jobs.cancel(job.id)


def test_lists_go_page_by_page(doors: Doors, training: Callable[[str], openai.OpenAI]) -> None:
    client = training("web")
    made = [client.files.create(file=(f"{n}.jsonl", EXAMPLE), purpose="fine-tune").id for n in range(3)]
    listed = [file.id for file in client.files.list(limit=2)]
    assert listed[:3] == made[::-1]
    assert [file.id for file in client.files.list(limit=2, order="asc")] == listed[::-1]
    jobs = [client.fine_tuning.jobs.create(model="tiny", training_file=made[0]).id for _ in range(3)]
    assert [job.id for job in client.fine_tuning.jobs.list(limit=2)][:3] == jobs[::-1]
    for job in jobs:
        client.fine_tuning.jobs.cancel(job)


@pytest.mark.shows("R6")
def test_a_worker_does_it_all_by_itself_and_a_killed_one_is_taken_over_from(
    doors: Doors, training: Callable[[str], openai.OpenAI]
) -> None:
    client, house = training("relay"), doors.house
    file = client.files.create(file=("a.jsonl", EXAMPLE), purpose="fine-tune")
    slow = client.fine_tuning.jobs.create(model="tiny", training_file=file.id, suffix="slow")
    environ = {**house.environ, "GATEHOUSE_TRAINER_GRACE_SECONDS": "1"}
    beat = Celery(broker=environ["VALKEY_SCRATCH_URL"])
    beat.conf.broker_transport_options = {"global_keyprefix": environ["GATEHOUSE_VALKEY_PREFIX"] + "celery:"}

    def worker() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "celery", "-A", "config.celery", "worker", "--pool", "threads"]
        command += ["--without-gossip", "--without-mingle"]
        return spawn(command, log=house.folder / "worker.log", death_signal=signal.SIGKILL, environ=environ, cwd=ROOT)

    def until(condition: Callable[[], bool], what: str) -> None:
        """As the beat does, but more often."""

        def looked() -> bool:
            beat.send_task("gpupool.tasks.tend_fine_tuning", expires=5)
            return condition()

        wait_until(looked, what, seconds=90)  # a worker starts slowly on a busy machine

    def pid() -> int | None:
        return FineTuningJob.objects.values_list("runner_pid", flat=True).get(pk=UUID(slow.id[6:]))

    def told() -> set[str]:
        return {event.message for event in client.fine_tuning.jobs.list_events(slow.id)}

    first = worker()
    try:
        until(lambda: pid() is not None, "the training's start")
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    second = worker()
    try:
        until(lambda: "Waiting" in told(), "what the trainer says, heard by the second worker")
        assert client.fine_tuning.jobs.cancel(slow.id).status == "cancelled"
        good = client.fine_tuning.jobs.create(model="tiny", training_file=file.id, suffix="good")
        until(lambda: client.fine_tuning.jobs.retrieve(good.id).status == "succeeded", "the next training")
        assert not FineTuningJob.objects.filter(runner_live=True).exists()
    finally:
        stop(second, grace_seconds=10)


@pytest.mark.shows("G25")
@pytest.mark.usefixtures("training")
def test_no_key_is_in_what_is_kept(doors: Doors) -> None:
    """After all the jobs above."""
    kept = [path for path in (Path(doors.house.environ["GATEHOUSE_VAR_DIR"]) / "training").rglob("*") if path.is_file()]
    logs = [doors.house.log(name) for name in ("relay", "web", "worker") if doors.house.log(name).exists()]
    assert len(kept) > 5
    for path in (*kept, *logs):
        content = path.read_bytes()
        assert not [name for name, secret in doors.secrets.items() if secret.encode() in content], path


def test_without_a_trainer_jobs_are_refused(doors: Doors, training: Callable[[str], openai.OpenAI]) -> None:
    house = doors.house
    client = training("relay")
    file = client.files.create(file=("a.jsonl", EXAMPLE), purpose="fine-tune")
    house.stop("relay")
    command = house.environ.pop("GATEHOUSE_TRAINER_COMMAND")
    house.start("relay")
    with pytest.raises(openai.InternalServerError, match="no trainer is configured") as refused:
        client.fine_tuning.jobs.create(model="tiny", training_file=file.id)
    assert (refused.value.status_code, refused.value.code) == (503, "not_configured")
    with pytest.raises(openai.InternalServerError, match="no trainer is configured"):
        client.files.create(file=("b.jsonl", EXAMPLE), purpose="fine-tune")
    assert client.files.delete(file.id).deleted
    house.environ["GATEHOUSE_TRAINER_COMMAND"] = command
