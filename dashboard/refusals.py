"""What services refuse, in the reader's language: forms show it at the field, or above them all.

Services speak English sentences with values in them. Those that a person on a page can meet stand here, with places
for the values; what stands nowhere here is shown as the service said it.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, TypeVar

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from core.refusals import Conflict, InvalidInput

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
    # Admission.
    _("There is no manifest: `manage.py manifest PATH` on a node with the artefact prints it."),
    _("There is no model card (model-card.yaml)."),
    _("There is no signature: this installation has a trusted root, so a Sigstore bundle is needed."),
    _("%(name)s is no member of a model card."),
    _("%(whose)s lacks %(what)s"),
    _("A signature cannot be checked: GATEHOUSE_TRUSTED_ROOT is not set."),
    _("A signature is of a manifest or its files, and there is no manifest."),
    _("A bill of materials is of an artefact's files, and there is no manifest."),
    _("A model card is an object with members such as model, version and licence."),
    _("The card is of the %(what)s %(theirs)s; this is %(ours)s."),
    _("The card tells of data sets and says that they are not disclosed: one of both."),
    _("The data set %(name)s is there twice."),
    _("The sampling shares come to %(total)s; all data sets together are 1."),
    # What a version needs.
    _("A size in bytes is not negative."),
    _("An instance has 1 to %(most)s devices."),
    _("A share of a device's compute is above 0 and at most 1."),
    _("A priority is -1 (low), 0 or 1 (high)."),
    _("A tag has at most %(most)s printable characters."),
    _("An instance on the host's processor has one device, without a tag and a share."),
    _("A device that is nobody else's is not shared: leave the share out."),
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
    # Nodes and devices.
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
)  # fmt: skip

_PLACE: Final = re.compile(r"%\((\w+)\)s")


def said(message: str) -> str:
    """A service's sentence in the active language; as it is where no translation is known."""
    for pattern, sentence in _patterns().items():
        if found := pattern.fullmatch(message):
            return gettext(sentence) % _unquoted(found.groupdict())
    return message


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
def _patterns() -> dict["re.Pattern[str]", str]:
    made = {}
    for sentence in SENTENCES:
        parts = _PLACE.split(sentence)
        text = "".join(re.escape(part) if n % 2 == 0 else f"(?P<{part}>.+?)" for n, part in enumerate(parts))
        made[re.compile(text, re.DOTALL)] = sentence
    return made


def _unquoted(values: Mapping[str, str]) -> dict[str, str]:
    """Services quote names as Python does."""
    return {
        name: value[1:-1] if value[:1] == value[-1:] == "'" and len(value) > 1 else value
        for name, value in values.items()
    }
