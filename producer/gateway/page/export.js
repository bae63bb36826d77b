// Saves charts and tables as files: SVG with its styles written out, PNG drawn on a canvas, and CSV.

const PROPERTIES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-dashoffset", "stroke-linejoin", "opacity", "font-size", "font-family", "text-anchor"];
const SVG = "http://www.w3.org/2000/svg";
const MARGIN = 12, LINE = 16, SCALE = 3; // SCALE: pixels of a PNG per unit.

export function save(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Quotes a cell as RFC 4180 does. A text that a spreadsheet would take for a formula gets an apostrophe. */
function cell(value) {
  if (value === undefined || value === null) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function saveCsv(title, rows) {
  save(`${title}.csv`, "text/csv", rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n");
}

/** The chart's lines of text, its size with them, and its colours. */
function frame(chart) {
  const { width, height } = chart.svg.viewBox.baseVal, style = getComputedStyle(chart.card);
  const lines = [{ text: chart.title, colour: style.color, bold: true },
    ...chart.curves.map((curve) => ({ text: curve.name, colour: curve.colour }))];
  return { lines, top: MARGIN + lines.length * LINE, width: width + 2 * MARGIN, height: height + 2 * MARGIN + lines.length * LINE,
    back: style.backgroundColor, font: style.fontFamily };
}

export function svgText(chart) {
  const { lines, top, width, height, back, font } = frame(chart), copy = chart.svg.cloneNode(true);
  const originals = [...chart.svg.querySelectorAll("*")];
  [...copy.querySelectorAll("*")].forEach((made, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of PROPERTIES) made.setAttribute(name, style.getPropertyValue(name).replaceAll('"', "'"));
  });
  const file = document.createElementNS(SVG, "svg");
  const add = (name, attributes) => {
    const made = file.appendChild(document.createElementNS(SVG, name));
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) file.setAttribute(key, value);
  add("rect", { width, height, fill: back });
  lines.forEach(({ text, colour, bold }, i) => {
    add("text", { x: MARGIN, y: MARGIN + i * LINE + 11, fill: colour, "font-family": font, "font-size": 12, "font-weight": bold ? 600 : 400 }).textContent = text;
  });
  for (const [key, value] of Object.entries({ x: MARGIN, y: top, width: width - 2 * MARGIN, height: height - top - MARGIN })) copy.setAttribute(key, value);
  file.append(copy);
  return new XMLSerializer().serializeToString(file);
}

export const saveSvg = (chart) => save(`${chart.title}.svg`, "image/svg+xml", svgText(chart));

/** Draws paths and texts of an SVG element. A policy that allows no images from memory leaves only this way to a PNG. */
function paint(context, parent) {
  for (const one of parent.children) {
    const style = getComputedStyle(one);
    context.save();
    context.globalAlpha = Number(style.opacity);
    if (one.tagName === "svg") {
      const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => one[name].baseVal.value);
      context.translate(x, y);
      context.beginPath();
      context.rect(0, 0, width, height);
      context.clip();
      paint(context, one);
    } else if (one.tagName === "text") {
      context.font = `${style.fontSize} ${style.fontFamily}`;
      context.textAlign = style.textAnchor === "middle" ? "center" : style.textAnchor;
      context.fillStyle = style.fill;
      context.fillText(one.textContent, one.x.baseVal[0].value, one.y.baseVal[0].value);
    } else {
      const path = new Path2D(one.getAttribute("d"));
      context.setLineDash(style.strokeDasharray === "none" ? [] : style.strokeDasharray.split(/[ ,]+/).map(parseFloat));
      context.lineDashOffset = parseFloat(style.strokeDashoffset);
      context.lineWidth = parseFloat(style.strokeWidth);
      if (style.fill !== "none") {
        context.fillStyle = style.fill;
        context.fill(path);
      }
      if (style.stroke !== "none") {
        context.strokeStyle = style.stroke;
        context.stroke(path);
      }
    }
    context.restore();
  }
}

export async function pngBlob(chart) {
  const { lines, top, width, height, back, font } = frame(chart), canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * SCALE, height * SCALE];
  const context = canvas.getContext("2d");
  context.scale(SCALE, SCALE);
  context.fillStyle = back;
  context.fillRect(0, 0, width, height);
  lines.forEach(({ text, colour, bold }, i) => {
    context.font = `${bold ? "600 " : ""}12px ${font}`;
    context.fillStyle = colour;
    context.fillText(text, MARGIN, MARGIN + i * LINE + 11);
  });
  context.translate(MARGIN, top);
  paint(context, chart.svg);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

export const savePng = async (chart) => save(`${chart.title}.png`, "image/png", await pngBlob(chart));
