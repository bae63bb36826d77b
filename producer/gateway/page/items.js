// Lists of items of a task: filters, search, pages, and the texts of each item.
import { call, errorText } from "/page/gateway.js";
import { bytes, make, renew, showChips } from "/page/elements.js";
import { appendPieces, appendText, differences } from "/page/text_diff.js";

const PAGE = 20, TEXT_BYTES = 4096, WHOLE_BYTES = 8 << 20, SEARCH_MS = 400;

/** A text of an item under its label. pieces: as differences() gives them; missing: plain text. */
export function textBlock(label, text, pieces, className = "") {
  const block = make("div", "", "text-block");
  block.append(make("h4", label));
  const body = block.appendChild(make("div", "", "model-text"));
  body.tabIndex = 0;
  body.setAttribute("role", "group");
  body.setAttribute("aria-label", label);
  if (text === null) body.append(make("i", "not known", "empty"));
  else if (text === "") body.append(make("i", "empty", "empty"));
  else if (pieces) appendPieces(body, pieces, className);
  else appendText(body, text);
  return block;
}

/** Two outputs side by side, with the words that differ marked. */
export function sideBySide(item) {
  const both = item.output_a !== null && item.output_b !== null;
  const [a, b] = both ? differences(item.output_a, item.output_b) : [];
  const sides = make("div", "", "sides");
  sides.append(textBlock("A", item.output_a, a, "only-a"));
  sides.append(textBlock("B", item.output_b, b, "only-b"));
  return sides;
}

/** The longest text of an item, in bytes. */
const longest = (item) => Math.max(...Object.entries(item)
  .map(([name, length]) => (name.endsWith("_bytes") ? length : 0)));

/**
 * A list of items below `box`, which has elements of the classes chips, search, said, list, prev
 * and next. The list is what query() asks for. The address keeps show, grep and offset, and
 * changeQuery(changes) writes them there.
 */
export class ItemList {
  constructor(box, { items, chips, draw, changeQuery }) {
    Object.assign(this, { box, items, chips, draw, changeQuery });
    Object.assign(this, { path: null, loads: 0, timer: null });
    this.at = (name) => box.querySelector(`.${name}`);
    this.at("search").addEventListener("input", () => {
      clearTimeout(this.timer);
      const search = () => changeQuery({ grep: this.at("search").value, offset: "" });
      this.timer = setTimeout(search, SEARCH_MS);
    });
    this.at("prev").addEventListener("click", () => this.turn(this.page.offset - PAGE));
    this.at("next").addEventListener("click", () => this.turn(this.page.next));
  }

  turn(offset) {
    this.changeQuery({ offset: offset > 0 ? String(offset) : "" });
    this.box.scrollIntoView({ block: "start" });
  }

  /** Shows the items that path and query name. If there are several calls, only the newest is shown. */
  async show(path, fixed, query) {
    const load = ++this.loads, search = this.at("search");
    const asked = new URLSearchParams({ ...fixed, limit: PAGE, text_bytes: TEXT_BYTES });
    for (const name of ["show", "grep", "offset", "metric"]) {
      if (query.get(name)) asked.set(name, query.get(name));
    }
    Object.assign(this, { path, asked });
    if (document.activeElement !== search) search.value = query.get("grep") ?? "";
    this.say("Loading the items …");
    try {
      const page = await call(`${path}?${asked}`);
      if (load !== this.loads) return null;
      this.page = page;
      this.render();
      return page;
    } catch (error) {
      if (load !== this.loads) return null;
      this.at("list").replaceChildren();
      this.at("prev").hidden = this.at("next").hidden = true;
      this.say(errorText(error), true);
      return null;
    }
  }

  say(text, isError = false) {
    this.at("said").textContent = text;
    this.at("said").classList.toggle("bad", isError);
  }

  clear() {
    this.loads++;
    this.at("list").replaceChildren();
    this.at("chips").replaceChildren();
    this.at("prev").hidden = this.at("next").hidden = true;
    this.say("");
  }

  render() {
    const { page, asked } = this, items = page[this.items];
    const show = asked.get("show") ?? this.chips.first;
    showChips(this.at("chips"), this.chips.of(page), (name) => name === show,
      (name) => this.changeQuery({ show: name === this.chips.first ? "" : name, offset: "" }));
    renew(this.at("list"), items.map((item, i) => this.entry(item, page.offset + i)));
    const [first, last, of] = [page.offset + 1, page.offset + items.length, page.matched]
      .map((count) => count.toLocaleString("en"));
    if (items.length) this.say(`Items ${first} to ${last} of ${of}`);
    else this.say(page.matched ? `There are only ${of} items.` : "No item matches.");
    this.at("prev").hidden = page.offset === 0;
    this.at("next").hidden = page.next === null;
  }

  /** One item. If a text is cut, a button loads all of it. */
  entry(item, offset) {
    const article = this.draw(item, this.page);
    if (longest(item) <= TEXT_BYTES) return article;
    const label = `Show all of the text (${bytes(longest(item))})`;
    const whole = article.appendChild(make("button", label, "whole"));
    whole.type = "button";
    whole.addEventListener("click", async () => {
      const asked = new URLSearchParams(this.asked);
      for (const [name, value] of Object.entries({ offset, limit: 1, text_bytes: WHOLE_BYTES })) {
        asked.set(name, value);
      }
      whole.disabled = true;
      try {
        const page = await call(`${this.path}?${asked}`);
        article.replaceWith(this.draw(page[this.items][0], page));
      } catch (error) {
        whole.textContent = errorText(error);
      }
    });
    return article;
  }
}
