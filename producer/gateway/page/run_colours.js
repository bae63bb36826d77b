// The colour and the mark of each run. They stay the same as long as the tab is open.

const SHOWN = "evalq-looks";
// Each has a contrast of at least 3 to 1 on light and on dark cards, and a distance of 0.09 or more from the others in OKLab.
const COLOURS = [
  "#2f7de1", "#e0662b", "#2a9963", "#b558c9", "#a8850f", "#d94b6a", "#1b93a3", "#967657", "#ff00ff", "#783cff", "#ff00a5", "#9687b4",
  "#875a87", "#c300ff", "#3c7800", "#8787ff", "#b44b00", "#c31e87", "#007869", "#ff0000", "#695ac3", "#e169b4", "#005aff", "#69a500",
];
const MARKS = 6;

const names = JSON.parse(sessionStorage.getItem(SHOWN) ?? "[]");

/** {colour, mark} of a run. Runs that have to share a colour have different marks. */
export function lookOf(run) {
  let index = names.indexOf(run);
  if (index < 0) {
    index = names.push(run) - 1;
    sessionStorage.setItem(SHOWN, JSON.stringify(names.slice(0, 1000)));
  }
  return { colour: COLOURS[index % COLOURS.length], mark: (index + Math.floor(index / COLOURS.length)) % MARKS };
}

/** The outline of a mark around (x, y): circle, square, triangle, diamond, cross, triangle on its tip. */
export function markPath(mark, x, y, size) {
  const at = (dx, dy) => `${(x + dx * size).toFixed(1)} ${(y + dy * size).toFixed(1)}`;
  const shape = (...corners) => `M${corners.map(([dx, dy]) => at(dx, dy)).join("L")}Z`;
  switch (mark) {
    case 1: return shape([-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]);
    case 2: return shape([0, -1.2], [1.1, 0.8], [-1.1, 0.8]);
    case 3: return shape([0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]);
    case 4: return shape([-1.2, -0.5], [-0.5, -0.5], [-0.5, -1.2], [0.5, -1.2], [0.5, -0.5], [1.2, -0.5], [1.2, 0.5], [0.5, 0.5], [0.5, 1.2], [-0.5, 1.2], [-0.5, 0.5], [-1.2, 0.5]);
    case 5: return shape([0, 1.2], [1.1, -0.8], [-1.1, -0.8]);
    default: return `M${at(-1, 0)}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0Z`;
  }
}
