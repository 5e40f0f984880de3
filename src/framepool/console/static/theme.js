// Dark or light: as the system has it, or as the person chose.

const KEY = "framepool.theme";
const ORDER = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");

const stored = () => {
  const value = localStorage.getItem(KEY);
  return ORDER.includes(value) ? value : "system";
};

/** Applies the theme, and calls back whenever it changes. */
export function begin(button, onchange) {
  const apply = () => {
    const theme = stored();
    document.documentElement.dataset.theme = theme === "system" ? (dark.matches ? "dark" : "light") : theme;
    button.title = `Theme: ${theme} (t)`;
    button.setAttribute("aria-label", button.title);
    onchange();
  };
  const next = () => {
    localStorage.setItem(KEY, ORDER[(ORDER.indexOf(stored()) + 1) % ORDER.length]);
    apply();
  };
  button.addEventListener("click", next);
  dark.addEventListener("change", apply);
  apply();
  return next;
}
