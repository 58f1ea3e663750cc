// Fields: those of a range's dates, lists that send their form when they change, and where the eye goes after a refusal.

export const WRONG = '[aria-invalid="true"]';

// An end that is not after its beginning: the browser says so, and leads there.
function boundEnd({ elements: { from, to } }) {
  const least = Date.parse(`${from.value}Z`) + 60_000;
  to.min = Number.isNaN(least) ? "" : new Date(least).toISOString().slice(0, 16);
}

for (const dates of document.querySelectorAll("form.dates")) {
  dates.addEventListener("input", () => boundEnd(dates));
  boundEnd(dates);
}

// Arrows and letters change a list that is shut at each press. Whoever walks through it so goes on by Enter, or by the
// form's button: the first press would else lead away.
let walked = false;

document.addEventListener("pointerdown", () => (walked = false));
document.addEventListener("keydown", (event) => {
  if (!event.target.matches?.("[data-autosubmit]")) return;
  if (event.key === "Enter" && walked) {
    event.preventDefault();
    event.target.form.requestSubmit();
  } else if (["Enter", " ", "F4"].includes(event.key) || event.altKey) walked = false; // these open it
  else if (/^(Arrow|Page|Home$|End$|.$)/u.test(event.key)) walked = true;
});
document.addEventListener("change", (event) => {
  if (event.target.matches?.("[data-autosubmit]") && !walked) event.target.form.requestSubmit();
});

// Of a form that came back.
document.querySelector(`main ${WRONG}`)?.focus();
