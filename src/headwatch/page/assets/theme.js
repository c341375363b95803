"use strict";
// Light and dark: the system's choice until the reader makes one.
hw.theme = (() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const changed = hw.signal(null);
  const remembered = (() => { try { return localStorage.getItem("hw-theme"); } catch { return null; } })();
  let name = remembered ?? (dark.matches ? "dark" : "light");

  const known = new Map();
  function apply(next) {
    name = next;
    known.clear();
    document.documentElement.dataset.theme = name;
    document.querySelector("#hw-theme span").textContent = name === "dark" ? "light" : "dark";
    changed.set(name);
  }

  /** A colour of the page's style by name: "ink", "faint", "line", "card", "theta" … */
  function colour(key) {
    if (!known.has(key)) known.set(key, getComputedStyle(document.documentElement).getPropertyValue(`--${key}`).trim());
    return known.get(key);
  }

  hw.byId("hw-theme").addEventListener("click", () => {
    apply(name === "dark" ? "light" : "dark");
    try { localStorage.setItem("hw-theme", name); } catch { /* a page without storage keeps the choice until it is closed */ }
  });
  dark.addEventListener("change", (event) => { if (!remembered) apply(event.matches ? "dark" : "light"); });
  apply(name);
  return { colour, name: () => name, listen: changed.listen };
})();
