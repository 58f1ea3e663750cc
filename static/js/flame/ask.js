// What the wall asks for beside its live frames. The channel says when one may not look any more; while it is paused,
// or shows the past, only these answers do.
export class Denied extends Error {}

// `own404`: an answer of ours that there is no such thing is JSON; a page that says so is for who may not see it.
export async function ask(address, { own404 = true } = {}) {
  const answer = await fetch(address, { headers: { Accept: "application/json" }, redirect: "manual" });
  const page = !answer.headers.get("Content-Type")?.startsWith("application/json");
  // The page of logging in is where the redirect leads.
  if (answer.type === "opaqueredirect" || answer.status === 403) throw new Denied();
  if (own404 && answer.status === 404 && page) throw new Denied();
  return answer;
}
