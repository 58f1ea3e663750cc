// Forms with data-passkey: before they are sent, the browser is asked for a passkey, and `credential` gets its answer.
// `create` and `get` find their options in the page, `ask` fetches them from the form's own address.

function toBytes(text) {
  const plain = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  return Uint8Array.from(plain, (character) => character.charCodeAt(0));
}

function toText(buffer) {
  const plain = String.fromCharCode(...new Uint8Array(buffer));
  return btoa(plain).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
}

// Challenge and ids come as text; the browser wants bytes. A relying party's id stays text.
function decoded(options) {
  const publicKey = structuredClone(options.publicKey);
  publicKey.challenge = toBytes(publicKey.challenge);
  if (publicKey.user) publicKey.user.id = toBytes(publicKey.user.id);
  for (const list of [publicKey.allowCredentials, publicKey.excludeCredentials]) {
    for (const credential of list ?? []) credential.id = toBytes(credential.id);
  }
  return { publicKey };
}

function encoded(credential) {
  const response = {};
  for (const name of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"]) {
    if (credential.response[name]) response[name] = toText(credential.response[name]);
  }
  if (credential.response.getTransports) response.transports = credential.response.getTransports();
  return {
    id: credential.id,
    rawId: toText(credential.rawId),
    type: credential.type,
    authenticatorAttachment: credential.authenticatorAttachment,
    clientExtensionResults: credential.getClientExtensionResults(),
    response,
  };
}

async function options(form) {
  if (form.dataset.passkey !== "ask") return JSON.parse(document.getElementById("passkey-options").textContent);
  const answer = await fetch(form.action, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return (await answer.json()).request_options;
}

async function prove(form) {
  const failure = form.querySelector("[role=alert].form-error");
  failure.hidden = true;
  try {
    const wanted = decoded(await options(form));
    const made = form.dataset.passkey === "create";
    const credential = await (made ? navigator.credentials.create(wanted) : navigator.credentials.get(wanted));
    form.elements.credential.value = JSON.stringify(encoded(credential));
    form.submit(); // past this listener
  } catch {
    // People say no, tokens are not plugged in: that is no error of the page.
    failure.hidden = false;
  }
}

for (const form of document.querySelectorAll("form[data-passkey]")) {
  if (!window.PublicKeyCredential) {
    const failure = form.querySelector("[role=alert].form-error");
    if (form.dataset.passkey === "create") failure.hidden = false;
    continue;
  }
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    prove(form);
  });
}
