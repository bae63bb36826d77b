// Helpers that build elements of the page, and texts that go into them.

/** An element with text. Text from outside always goes through textContent. */
export function make(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

/** Replaces the children. The focus stays on the element with the same data-key. */
export function renew(parent, children) {
  const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  parent.replaceChildren(...children);
  if (key !== undefined) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = count > 0 ? Math.min(Math.floor(Math.log2(count) / 10), 4) : 0;
  return `${(count / 1024 ** power).toFixed(power > 2 ? 1 : 0)} ${units[power]}`;
}

/** Buttons that are pressed or not: [{name, label, note, colour}]. Calls onToggle(name). */
export function showChips(group, chips, pressed, onToggle) {
  renew(group, chips.map((chip) => {
    const button = make("button");
    button.type = "button";
    button.dataset.key = chip.name;
    button.title = chip.label ?? chip.name;
    button.setAttribute("aria-pressed", String(pressed(chip.name)));
    if (chip.colour) {
      button.style.setProperty("--chip", chip.colour);
      button.append(document.createElement("i"));
    }
    button.append(chip.label ?? chip.name);
    if (chip.note !== undefined) button.append(make("small", chip.note));
    button.addEventListener("click", () => onToggle(chip.name));
    return button;
  }));
}
