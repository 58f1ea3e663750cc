// Runs before the first paint: sets the theme, so that no page flashes in the other one.
(function () {
  var root = document.documentElement;
  var wanted = "auto";
  try {
    wanted = localStorage.getItem("gatehouse.theme") || "auto";
  } catch (refused) {
    // Storage is off: the system's theme applies.
  }
  var dark = wanted === "dark" || (wanted !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.setAttribute("data-theme-choice", wanted);
  root.setAttribute("data-bs-theme", dark ? "dark" : "light");
})();
