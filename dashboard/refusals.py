"""What services refuse, in the reader's language: forms show it at the field, or above them all.

Services speak English sentences with values in them. Those that a person on a page can meet stand here and in
dashboard.document_sentences, with places for the values; what stands nowhere here is shown as the service said it. A
value may be said itself (`why`, `whose`, `what`), and a state is said in the word that pages have for it (`state`).
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, TypeVar

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from core.refusals import Conflict, InvalidInput
from core.sentences import DEEPEST, LONGEST, Sentence, Sentences, unquoted
from dashboard import document_sentences, labels
from dashboard.slo_words import ALERT_STATES
from tenants.policies import delivery_sentences

Made = TypeVar("Made")

SENTENCES: Final = (
    # Names and versions.
    _("A model needs a name of 1 to 200 printable characters, without * ? [ ]."),
    _("There is a model %(name)s already."),
    _("%(name)s is another name of a model already."),
    _("A version needs a name of 1 to 80 characters."),
    _("%(model)s has a version %(name)s already."),
    _("A model has at most %(most)s other names."),
    _("There is no such tenant."),
    _("The model is another tenant's own."),
    _("The name that the engine knows has at most 200 characters."),
    _("Engine arguments are text, numbers or true and false."),
    _("The pool cannot start %(engine)s itself; attach a running one by its address."),
    _("An artefact is package:MODULE/FILE or file:///PATH."),
    _("Say how many bytes one instance claims on each of its devices. %(why)s"),
    _("Replicas are between 0 and %(most)s."),
    _("A version without an artefact takes attached engines only."),
    _("The version is a draft: admit it first."),
    _("A version that is %(state)s cannot become %(other)s."),
    _("The version was never admitted, which this installation asks for: admit it first."),
    _("There is no engine %(name)s; known are %(names)s."),
    _("%(model)s %(version)s has no artefact that could be launched."),
    _("It is another tenant's own."),
    _("The version is %(state)s: only a draft can be changed. Make a new version."),
    _("This cannot be changed."),
    _("The version serves: to admit it again would take its requests away. Retire it first."),
    _("Instances of what the version was before it became a draft still run: wait until they ended."),
    _("A version is served instead of another one of the same model, for the same tenants."),
    _("%(name)s is %(state)s: nothing is served instead of it."),
    _("No instance of %(name)s is ready: its requests would have nowhere to go."),
    _("%(model)s %(version)s is %(state)s, so none of it starts."),
    _("Engine arguments are Unicode text without NUL."),
    _("%(engine)s takes no argument %(name)s; it takes %(names)s."),
    _("%(engine)s does not take these arguments: %(why)s."),
    _("A device is one of %(names)s."),
    _("It has no artefact to be read: an attached engine's memory is its own."),
    _("The pool does not start %(engine)s itself, so its memory is not estimated."),
    _("It cannot be estimated here: only GGUF files (.gguf) and folders, named by their %(name)s, are."),
    _("Its files cannot be read here: %(why)s."),
    _("Its weights' headers cannot be read: %(why)s."),
    # Admission.
    _("There is no manifest: `manage.py manifest PATH` on a node with the artefact prints it."),
    _("There is no model card (model-card.yaml)."),
    _("There is no signature: this installation has a trusted root, so a Sigstore bundle is needed."),
    _("%(name)s is no member of a model card."),
    _("A signature cannot be checked: GATEHOUSE_TRUSTED_ROOT is not set."),
    _("A signature is of a manifest or its files, and there is no manifest."),
    _("A bill of materials is of an artefact's files, and there is no manifest."),
    _("A model card is an object with members such as model, version and licence."),
    _("The card is of the %(what)s %(theirs)s; this is %(ours)s."),
    _("The card tells of data sets and says that they are not disclosed: one of both."),
    _("The data set %(name)s is there twice."),
    _("The sampling shares come to %(total)s; all data sets together are 1."),
    _("A model card has at most %(most)s KiB."),
    # What a version needs.
    _("A size in bytes is not negative."),
    _("An instance has 1 to %(most)s devices."),
    _("A share of a device's compute is above 0 and at most 1."),
    _("A priority is -1 (low), 0 or 1 (high)."),
    _("A tag has at most %(most)s printable characters."),
    _("An instance on the host's processor has one device, without a tag and a share."),
    _("A device that is nobody else's is not shared: leave the share out."),
    _("A limit of a device's memory is 1 to %(most)s MB."),
    _("It is a number of seconds above 0, within a year."),
    _("A precision is one of %(names)s."),
    _("A request's shape is batch, sequence_length and precision; not %(name)s."),
    _("%(name)s is a whole number from 1 to %(most)s."),
    # Instances.
    _("It is %(state)s: only one that serves or is on its way can sleep."),
    _("It was attached by its address: whoever started it puts it to sleep."),
    _("It was attached by its address: its log lies where it was started."),
    _("It has no place yet. Stop it if it is not needed."),
    _("%(why)s It can be staged: ended, with its weights kept in memory."),
    _("%(engine)s cannot give its devices' memory back while it runs."),
    _("It was stopped. Start another in its place."),
    _("It is one of its version's replicas, which no tenant acquired."),
    # Attached engines.
    _("An engine's address looks like http://host:8000 or https://host."),
    _("No credentials in the address; name an environment variable that holds them."),
    _("An engine's address has no query and no fragment."),
    _("The address is too long, or has characters that do not belong there."),
    _("The address has a space in it."),
    _("Port 0 is no address."),
    _("The variable's name must begin with GATEHOUSE_ENGINE_KEY."),
    _("Slots are between 1 and 100,000."),
    _("%(url)s is not an address: %(why)s."),
    _("The engine %(engine)s is switched off."),
    _("%(why)s Switch it on first."),
    _("%(model)s %(version)s is %(engine)s serving %(name)s; name another version."),
    # Nodes and devices.
    _("A node's name has letters, digits, dots, dashes and underscores, at most 120."),
    _("There is a node %(name)s already."),
    _("Node %(name)s is connected; stop its agent first."),
    _("The token was changed or revoked meanwhile."),
    _("Say why: people will ask what this node is out of service for."),
    _("A reason has at most %(most)s characters."),
    _("Something is being done about this device: wait until it has ended."),
    # Reservations, rules.
    _("The tenant has a reservation of this tag already: change that."),
    _("A reservation has at most %(most)s devices."),
    _("Say how many devices are kept, or how much of their memory."),
    _("An answer is one of %(names)s."),
    # Grants.
    _("A pattern has 1 to 200 characters."),
    _("The expiry lies in the past."),
    # Tenants and departments.
    _("Give 0 to %(most)s days."),
    _("A tenant cannot be below itself."),
    _("Departments go at most %(most)s deep."),
    _("The parent is suspended."),
    _("This tenant is being erased."),
    _("It was taken at this moment."),
    # Members, invitations, people.
    _("An invitation is open for 1 to %(most)s days."),
    _("This person is a member already."),
    _("This tenant has %(most)s open invitations: withdraw some first."),
    _("It was accepted: remove the member instead."),
    _("This is no e-mail address."),
    _("An address has at most 254 characters."),
    _("This is the tenant's last owner: make someone else an owner first."),
    _("A name has at most 120 characters."),
    _("This is the last superuser: make someone else one first."),
    _("This person is deactivated and sees nothing."),
    # Roles that an identity provider gives.
    _("It has 1 to 200 characters."),
    _("Give either a platform role, or a tenant and a role in it."),
    _("There is a mapping of this claim and value here: delete it first."),
    # Keys.
    _("Between 0 and %(most)s seconds."),
    _("This key works no longer: make a new one."),
    _("This key was rotated before: rotate the one in its place."),
    _("No application has this key, and it renews itself."),
    _("This key is revoked."),
    _("This key was rotated: its end may only come earlier."),
    _("Give a time between the making of a compromised key and now."),
    _("A key needs a name of 1 to 80 characters."),
    _("Requests a minute must be between 1 and %(most)s."),
    _("The expiry lies more than a hundred years ahead: leave it out for never."),
    _("Models are names or patterns of 1 to 200 characters."),
    # Limits.
    _("The key belongs to another tenant."),
    _("A note has at most 200 characters."),
    _("The tenant has %(most)s limits already."),
    _("There is a limit of this metric and window for the same scope already: change that."),
    _("The limit allows %(amount)s anyhow."),
    _("Say when it ends."),
    _("The end lies in the past, or more than a year ahead."),
    _("Say how much is allowed until then."),
    _("What is limited is one of %(names)s."),
    _("A limit of %(metric)s is by %(windows)s."),
    _("Only a tenant's limit can take in its departments."),
    _("A key's limit names the key's tenant too."),
    _("A key has no departments."),
    _("GPUs are given to tenants, not to keys."),
    _("A model's name has at most 200 characters; leave it empty for all models."),
    _("An amount is a whole number from 1 to %(most)s."),
    _("Only a bucket is refilled: leave it out for other windows."),
    _("A bucket needs what comes back each second."),
    _("What comes back each second is above 0 and at most %(most)s."),
    _("Only limits by day or month are told about in advance."),
    _("Give at most %(most)s different percentages from 1 to 100."),
    # Requests for more.
    _("A model's name or pattern has 1 to 200 characters."),
    _("There is no such limit yet: only one that is there can be raised for a time."),
    _("There is no such bucket yet, and its refill is not asked for here."),
    _("It is %(state)s already."),
    _("An answer has at most %(most)s characters."),
    _("A reason has 1 to %(most)s characters."),
    _("The same was asked for already, and nobody decided yet."),
    _("%(most)s requests wait for a decision already."),
    _("You asked for it yourself: another operator approves it."),
    _("Nothing is granted when it is declined."),
    _("The tenant has this grant already."),
    _("There is a grant of other actions until another time: change that one first."),
    _("There is a grant that lasts longer: end it first, or approve this one for good."),
    _("The limit was raised since: it allows %(amount)s anyhow."),
    _("The limit is raised to %(amount)s until %(until)s: end that first."),
    _("The limit that was to be raised is gone."),
    _("The key is gone."),
    _("Only a limit has an amount."),
    # Prices.
    _("A model's name has 1 to 200 characters."),
    _("A price lies between 0 and a million of the currency."),
    _("What was used already keeps its price: give a moment ahead, or none."),
    _("A price begins within ten years."),
    _("The price is or was in effect, and bills name it: set another one instead."),
    _("There is a price from that moment already."),
    # Webhooks.
    _("There are %(most)s webhooks already."),
    _("The webhook is disabled: enable it first."),
    _("A test is under way already: see the webhook's deliveries."),
    *delivery_sentences.ADDRESSES,
    # Objectives.
    _("An objective needs a name of 1 to %(most)s printable characters."),
    _("There is an objective %(name)s already."),
    _("The target is a share of requests from 0.5 to 0.99999, for instance 0.99."),
    _("The window is 1 to %(most)s days."),
    _("Choose a tenant or a tier: a tenant is of one tier."),
    _("Availability has no threshold: leave it empty."),
    _("Say within how many seconds a request is good."),
    _("%(seconds)s s is no bound of the histogram, so it cannot be counted exactly. Take %(bounds)s."),
    _("This cannot be changed: make another objective."),
    _("There are %(most)s objectives of this tenant's own already: delete one first."),
    _("There are %(most)s objectives already: delete one first."),
    _("Say why nobody is to be told."),
    _("A silence ends later than it begins, and not in the past."),
    _("A silence lasts %(most)s days at most."),
    _("This objective is not theirs who would silence it."),
    _("The silence has ended already."),
    _("The alert is %(state)s already."),
    # Saved views and exports.
    _("Give the view a name of at most 80 characters."),
    _("This filter is too long to be kept: at most 1,000 characters."),
    _("There are %(most)s saved views of this list already: delete one first."),
    _("%(most)s exports of yours are being written: wait until one is ready."),
    _("More than %(most)s rows: filter the list, and export it in parts."),
    _("Writing it took longer than 4 minutes: filter the list, and export it in parts."),
    _("You may not see this list any more."),
    _("Writing it failed; the log of the worker says why. Ask for it again."),
    _("The worker that wrote it ended before it was done. Ask for it again."),
)  # fmt: skip

ALL: Final = (*SENTENCES, *document_sentences.SENTENCES)

_AMONG: Final = _(", ")

_STATES: Final[labels.Words] = {
    **labels.INSTANCE_STATES,
    **labels.VERSION_STATES,
    **labels.REQUEST_STATES,
    **ALERT_STATES,
}
"""Of all that refusals name the state of; no two of them mean different things by one."""


def said(message: str, *, deep: int = 0) -> str:
    """A service's sentence in the active language; as it is where no translation is known."""
    if len(message) > LONGEST or deep > DEEPEST:
        return message
    found = _sentences().found(message)
    if found is None:
        return message
    sentence, values = found
    return filled(sentence, gettext(sentence.text), values, within=lambda part: said(part, deep=deep + 1))


def filled(sentence: Sentence, told: str, values: Mapping[str, str], *, within: Callable[[str], str]) -> str:
    """A refusal's sentence as it is `told` in the active language, with its values; `within` says sentences in it."""
    bare = unquoted(values)
    return told % (bare if told == sentence.text else _in_words(bare, within))


def all_said(messages: "tuple[str, ...]") -> list[str]:
    """Each of them."""
    return [said(message) for message in messages]


def add_refusal(form: forms.Form, error: InvalidInput | Conflict, *, fields: Mapping[str, str] | None = None) -> None:
    """Show it at the field that it is about, above all of them where the form has none of that name.

    `fields`: names that the service calls otherwise than the form.
    """
    if isinstance(error, Conflict):
        for reason in error.reasons or (error.message,):
            form.add_error(None, said(reason))
        return
    field = (fields or {}).get(error.field, error.field)
    form.add_error(field if field in form.fields else None, said(error.message))


def tried(form: forms.Form, write: Callable[[], Made], *, fields: Mapping[str, str] | None = None) -> Made | None:
    """What the write gives; None where the service refuses, which the form then says (see `add_refusal`)."""
    try:
        return write()
    except (InvalidInput, Conflict) as error:
        add_refusal(form, error, fields=fields)
        return None


@cache
def _sentences() -> Sentences:
    return Sentences(ALL)


def _in_words(values: Mapping[str, str], within: Callable[[str], str]) -> dict[str, str]:
    """States and sentences within the sentence, in the active language too."""
    made = dict(values)
    for name in ("state", "other"):
        if name in made:
            made[name] = str(_STATES.get(made[name], made[name]))
    if "metric" in made:
        made["metric"] = labels.word("metric", made["metric"])
    if "windows" in made:
        windows = [labels.word("window", one) for one in made["windows"].split(", ")]
        made["windows"] = gettext(_AMONG).join(windows)
    for name in ("why", "whose", "what"):
        if name in made:
            made[name] = within(made[name])
    return made
