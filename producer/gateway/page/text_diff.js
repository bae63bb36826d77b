// Shows texts of models, and the differences between two texts word by word.
// A text is never read as HTML, and a control character is shown as an escape.

const WORDS_MAX = 1500; // Longer differences are marked as a whole.
const WORDS = /\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu;
// All control characters but the tabulator and the line feed, and characters without a width.
const CONTROL = /[\0-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b\u2028\u2029\u2060\ufeff]/g;

const escaped = (one) => {
  const hex = one.charCodeAt(0).toString(16);
  return hex.length < 3 ? `\\x${hex.padStart(2, "0")}` : `\\u${hex.padStart(4, "0")}`;
};

/** Appends a text to an element. */
export function appendText(parent, text) {
  let from = 0;
  for (const { index, 0: one } of text.matchAll(CONTROL)) {
    parent.append(text.slice(from, index));
    const mark = parent.appendChild(document.createElement("span"));
    mark.className = "control";
    mark.textContent = escaped(one);
    from = index + 1;
  }
  parent.append(text.slice(from));
}

/** The lengths of the longest common subsequences of all ends of a and b: (a.length + 1) rows. */
function commonLengths(a, b) {
  const width = b.length + 1, lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let k = b.length - 1; k >= 0; k--) {
      lengths[i * width + k] = a[i] === b[k]
        ? lengths[(i + 1) * width + k + 1] + 1
        : Math.max(lengths[(i + 1) * width + k], lengths[i * width + k + 1]);
    }
  }
  return lengths;
}

/** Whether each word of a and b is not in a longest common subsequence: two lists. */
function marks(a, b) {
  const [onlyA, onlyB] = [a, b].map((words) => new Array(words.length).fill(true));
  if (a.length > WORDS_MAX || b.length > WORDS_MAX) return [onlyA, onlyB];
  const lengths = commonLengths(a, b), width = b.length + 1;
  for (let i = 0, k = 0; i < a.length && k < b.length; ) {
    if (a[i] === b[k]) onlyA[i++] = onlyB[k++] = false;
    else if (lengths[(i + 1) * width + k] >= lengths[i * width + k + 1]) i++;
    else k++;
  }
  return [onlyA, onlyB];
}

/** Joins neighbours that are marked alike: [{text, only}]. */
function pieces(words, only) {
  const joined = [];
  words.forEach((text, i) => {
    if (joined.at(-1)?.only === only[i]) joined.at(-1).text += text;
    else joined.push({ text, only: only[i] });
  });
  return joined;
}

/** The pieces of two texts, each with whether the other text lacks it. */
export function differences(a, b) {
  const left = a.match(WORDS) ?? [], right = b.match(WORDS) ?? [];
  const least = Math.min(left.length, right.length);
  let head = 0, tail = 0;
  while (head < least && left[head] === right[head]) head++;
  while (tail < least - head && left.at(-1 - tail) === right.at(-1 - tail)) tail++;
  const inner = (words) => words.slice(head, words.length - tail);
  const only = marks(inner(left), inner(right));
  return [left, right].map((words, side) =>
    pieces(words, [...new Array(head).fill(false), ...only[side], ...new Array(tail).fill(false)]));
}

/** Appends pieces to an element; those that the other text lacks are marked. */
export function appendPieces(parent, list, className) {
  for (const { text, only } of list) {
    if (!only) {
      appendText(parent, text);
      continue;
    }
    const mark = parent.appendChild(document.createElement("mark"));
    mark.className = className;
    appendText(mark, text);
  }
}
