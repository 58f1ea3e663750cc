"""What is wrong with what people paste: manifests, model cards, bills of materials, signatures, engine arguments.

Part of dashboard.refusals, which says them in the reader's language. Policies and engines speak them in English.
"""

from typing import Final

from django.utils.translation import gettext_noop as _

SENTENCES: Final = (
    # Engine arguments.
    _("llama.cpp shares n_ctx %(tokens)s among n_parallel %(slots)s slots: under 64 tokens are left for each."),
    _("llama.cpp keeps values as %(name)s only with flash attention: set flash_attention to 'on'."),
    _("llama.cpp ranks by pooling 'rank', not %(name)s."),
    _("llama.cpp takes pooling only together with embeddings or reranking."),
    _("llama.cpp takes lora_adapters by absolute paths; %(name)s is none."),
    _(
        "vLLM needs a batch of at least a token for each of its %(sequences)s sequences: max_num_batched_tokens "
        "%(tokens)s is less."
    ),
    _("vLLM sleeps on GPUs only, and does not start with sleep_mode without one."),
    _("TGI leaves no token for the answer: max_input_tokens %(tokens)s of max_total_tokens %(most)s."),
    _("%(engine)s loads folders: name the %(name)s in the model's folder."),
    # Manifests.
    _("This is not a manifest: %(why)s."),
    _("The manifest's version is %(name)s; 1 is read."),
    _("Chunks have %(least)s to %(most)s bytes."),
    _("A manifest names 1 to %(most)s files."),
    _("The manifest names a file twice."),
    _("%(path)s is not a path within the artefact's folder."),
    _("The manifest gives %(path)s a size that no file has."),
    _("The manifest's SHA-256 of %(path)s is not 64 hexadecimal digits in lower case."),
    _("The manifest's tree digest of %(path)s is not 64 hexadecimal digits in lower case."),
    _("%(path)s is not in the manifest."),
    _("%(path)s is missing."),
    _("%(path)s has %(bytes)s bytes; the manifest says %(most)s."),
    _("%(path)s is not the file that the manifest names: its SHA-256 differs."),
    # Model cards, as YAML.
    _("The file is larger than %(most)s KiB."),
    _("The file is not UTF-8."),
    _("The file is nested too deep."),
    _("The file is nested more than %(most)s deep."),
    _("The file has more than %(most)s parts."),
    _("The file has more than one document."),
    _("A member's name is no text, in line %(line)s."),
    _("%(name)s is there twice, in the object of line %(line)s."),
    _("This is not YAML in line %(line)s: %(why)s."),
    _("This is not YAML: %(why)s."),
    _("This is not YAML: an escape or a number in it is out of range."),
    _("Anchors and aliases (& and *) are not read: write what is meant where it is meant."),
    _("Tags (!) are not read: write plain YAML."),
    # What is in them. `whose` is one of the cards' parts, `what` what a member means.
    _("The card"),
    _("Base model %(n)s"),
    _("Data set %(n)s"),
    _("Data set %(n)s (%(name)s)"),
    _("%(whose)s lacks %(name)s: %(what)s."),
    _("%(whose)s has no member %(name)s."),
    _("%(whose)s: %(name)s is a text of at most %(most)s characters."),
    _("%(whose)s has a sha256 that is not 64 hexadecimal digits."),
    _("%(whose)s has a sampling_share that is no number above 0 and at most 1."),
    _("%(name)s is a list of objects."),
    _("%(name)s has more than %(most)s entries."),
    _(
        "The card names no data sets (data_sets): give name, sha256, sampling_share and de_identification of each, or "
        "say in undisclosed_data who does not tell of them and why the model is used all the same."
    ),
    _("the model's name here"),
    _("the version's name here"),
    _("the licence that the weights are used under, for example apache-2.0"),
    _("what it is meant for, and what not"),
    _("what it is called"),
    _("its SHA-256"),
    _("its share of the training's samples, 0 to 1"),
    _("how personal data was taken out of it, or why there was none"),
    # Bills of materials.
    _("A bill of materials is a JSON object."),
    _("This is neither CycloneDX (bomFormat) nor SPDX 2.2 or 2.3 (spdxVersion), in JSON."),
    _("CycloneDX is read in the versions %(names)s."),
    _("The bill of materials does not have the members of its format."),
    _("The bill of materials names no components."),
    _("The bill of materials has more than %(most)s components."),
    _("The bill of materials does not name the artefact's file with SHA-256 %(digest)s."),
    _("A component has no name."),
    _("Component %(name)s has no version."),
    # Signatures.
    _("The bundle is larger than %(most)s bytes."),
    _("The bundle is not a good signature: %(why)s."),
    _("The bundle has a statement of the type %(name)s, not in-toto's."),
    _("The bundle's statement is not in-toto's."),
    _("The bundle's statement does not name every file of the artefact with its SHA-256."),
    _("The bundle is of something else: it signs SHA-256 %(theirs)s, the manifest's is %(ours)s."),
    _(
        "The bundle is of something else: it signs SHA-256 %(theirs)s, the manifest's is %(ours)s and the file's "
        "%(file)s."
    ),
    _("The trusted root %(path)s cannot be read: %(why)s."),
    _("%(path)s is not a Sigstore trusted root."),
)
