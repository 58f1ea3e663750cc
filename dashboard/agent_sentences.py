"""What node agents say of engines that they start, isolate, put to sleep and end. Part of dashboard.reasons."""

from typing import Final

from django.utils.translation import gettext_noop as _

SENTENCES: Final = (
    # Engines that run, sleep and end (gpupool.agent: serving, slumber, life, staging, device_memory).
    _("It does not answer its health endpoint in time."),
    _("It did not answer its health endpoint for %(seconds)s s."),
    _("The device load stage failed: it was not loaded within %(seconds)s s."),
    _("It finishes its requests, then it sleeps."),
    _("It falls asleep."),
    _("It was not awake within %(seconds)s s."),
    _("%(engine)s cannot sleep."),
    _("%(engine)s cannot be woken."),
    _("%(engine)s does not sleep: it answers %(path)s with %(status)s."),
    _("%(engine)s does not wake: it answers %(path)s with %(status)s."),
    _("%(engine)s says that it is awake after it was told to sleep."),
    _("%(engine)s was asked and it is not known what it did: %(why)s."),
    _("no answer to %(path)s within %(seconds)s s."),
    _("the answer to %(path)s is too large."),
    _("%(path)s: the answer is not HTTP."),
    _("%(path)s: the connection was closed in mid-answer."),
    _("It has no process, and its weights are not here: %(why)s"),
    _("The agent failed while it looked after this engine: %(text)s."),
    _("The agent cannot write to its folder: %(text)s."),
    _("The agent was told to stop its engines."),
    _("It does not run on this node."),
    _("%(device)s still lists memory of its processes %(names)s, which have ended."),
    _("Nothing was reset for it."),
    _("No %(count)s engine ports in a row are left (%(first)s to %(last)s)."),
    _("All %(count)s engine ports (%(first)s to %(last)s) are in use."),
    _("%(engine)s cannot be started by the pool, only attached."),
    _("Engine arguments are a JSON object."),
    _("This %(engine)s is started without what lets it sleep; see the version's arguments."),
    _("The memory of %(device)s is not known, so %(engine)s cannot be told its share of it."),
    _("This is not the %(name)s of a model's folder, by which %(engine)s takes a model."),
    _("The UUID of %(device)s is not known, and ROCm takes GPUs by no other lasting name."),
    _("The index of %(device)s is not known, by which oneAPI takes GPUs."),
    # What a claim is overtaken by (gpupool.policies: node_reconcile, tenant_switch).
    _("Its device was given away: lease %(token)s is older than %(newer)s."),
    _("Its lease %(token)s was replaced by %(newer)s."),
    _("Fencing token %(token)s is older than %(newer)s, seen on %(device)s."),
    _("Fencing token %(token)s is older than %(newer)s, which runs here."),
    _("The row's fencing token %(token)s is older than %(newer)s: its claim is over."),
    _("Under this claim it is bound to a tenant, and stays so."),
    _("Under this claim it is bound to another tenant. Stop it, and start one for this tenant."),
    _("The tenant's signature does not match: it is forged, damaged or of another claim."),
    _("It serves other tenants now. It must sleep before it is bound to one."),
    # Isolation (gpupool.policies.isolation, gpupool.agent.isolation).
    _("It names %(path)s, which would show it what is others'."),
    _("Its sandbox cannot be made: %(text)s."),
    _(
        "%(device)s is a part of a GPU, whose device nodes only a CDI specification tells: make one with `nvidia-ctk "
        "cdi generate --device-name-strategy=uuid`."
    ),
    _("The device nodes of %(device)s are not known, so that no sandbox can show it."),
    _("The instance cannot open %(path)s any more: %(why)s."),
    _("its driver did not answer within %(seconds)s s."),
    _(
        "%(count)s of its processes use a device and each may take the whole limit of MPS: isolation.mps_clients says "
        "%(most)s."
    ),
    _("isolation has no member %(name)s; it has %(names)s."),
    _("isolation.sandbox is one of %(names)s, or left out; not %(name)s."),
    _("isolation.%(name)s is true or false."),
    _("isolation.cpu_cores is a number of processor cores, from 0.01."),
    _("isolation.mps_clients is a number of processes, 1 to %(most)s: MPS has no more clients."),
    _("isolation.cpu_cores is a limit of a control group: ask for cgroup too."),
    _("isolation.mps_clients says how many processes share the limit of MPS: ask for mps too."),
    _("MPS shares NVIDIA's GPUs, and this instance has none, or others too."),
    _("MPS is spoken to by a pipe in shared memory, which gVisor does not pass on."),
    _("A control group limits what is claimed of the host's memory: give the version host_memory_bytes."),
    _("it does not say why."),
    _("control groups of version 2"),
    # Rooms for engines that other packages bring (gpupool.engines.plugins).
    _("Its metadata cannot be read: %(text)s."),
    _("An engine's name has 1 to 32 of a-z, 0-9, dot, dash and underscore."),
    _("The name %(name)s is taken by %(package)s."),
    _("%(name)s cannot be imported: %(text)s."),
    _("%(name)s is a %(kind)s, not an Engine."),
    _("It is registered as %(name)s, but calls itself %(title)s."),
    _("Its title must be a text of 1 to %(most)s characters."),
    _("Its protocol and versions must be short texts."),
    _("Its %(name)s must be a frozenset of short names."),
    _("It has no wire."),
    _("Its %(part)s has no %(names)s: it was made for another release."),
)  # fmt: skip
