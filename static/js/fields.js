// Fields: those of a range's dates, lists that send their form when they change, and where the eye goes after a refusal.

export const WRONG = '[aria-invalid="true"]';

// An end that is not after its beginning: the browser says so, and leads there.
function boundEnd({ elements: { from, to } }) {
  const seconds = from.step === "1"; // the fields have them where both ends lie in one minute
  const least = Date.parse(`${from.value}Z`) + (seconds ? 1_000 : 60_000);
  to.min = Number.isNaN(least) ? "" : new Date(least).toISOString().slice(0, seconds ? 19 : 16);
}

for (const dates of document.querySelectorAll("form.dates")) {
  dates.addEventListener("input", () => boundEnd(dates));
  boundEnd(dates);
}

// Arrows and letters change a list that is shut at each press. Whoever walks through it so goes on by Enter, or by the
// form's button: the first press would else lead away. Where a press opens the list instead, as on macOS, what is chosen
// there comes later than the press, and leads on.
const LIST = "[data-autosubmit]";
const walked = new WeakSet(); // lists that a press has changed
let pressed = null; // the list of the press under way: what it changes comes before anything else can

document.addEventListener("pointerdown", ({ target }) => walked.delete(target));
function press({ target, key }) {
  if (!target.matches?.(LIST) || !/^(Arrow|Page|Home$|End$|.$)/u.test(key)) return;
  pressed = target;
  setTimeout(() => (pressed = null));
}
document.addEventListener("keypress", press); // letters
document.addEventListener("keydown", (event) => {
  const { target, key, altKey } = event;
  if (key === "Enter" && walked.has(target)) {
    event.preventDefault();
    target.form.requestSubmit();
  } else if (["Enter", " ", "F4"].includes(key) || altKey) walked.delete(target); // these open it
  else press(event);
});
document.addEventListener("change", ({ target }) => {
  if (!target.matches?.(LIST)) return;
  if (target === pressed) walked.add(target);
  else target.form.requestSubmit();
});

// Of a form that came back.
document.querySelector(`main ${WRONG}`)?.focus();
