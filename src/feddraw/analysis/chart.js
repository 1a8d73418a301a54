/* Line charts by hand: an SVG as wide as its place, so that text keeps its size on a phone. */

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "5 2"];
const COLOURS = 7; // --c0 to --c6 in the style; with five dashes, 35 clients differ
const MARKERS = [
  (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`, // circle
  (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`, // square
  (x, y, r) => `M${x} ${y - 1.3 * r}L${x + 1.2 * r} ${y + r}H${x - 1.2 * r}Z`, // triangle
  (x, y, r) => `M${x} ${y - 1.4 * r}L${x + 1.4 * r} ${y}L${x} ${y + 1.4 * r}L${x - 1.4 * r} ${y}Z`, // diamond
  (x, y, r) => `M${x} ${y + 1.3 * r}L${x + 1.2 * r} ${y - r}H${x - 1.2 * r}Z`, // triangle, point down
  (x, y, r) => `M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}`, // cross
];

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const colourClass = (index) => `c${index % COLOURS}`;

function line(index, path) {
  return draw("path", { d: path, class: `line ${colourClass(index)}`, "stroke-dasharray": DASHES[index % DASHES.length] });
}

function marker(index, x, y, radius) {
  return draw("path", { d: MARKERS[index % MARKERS.length](x, y, radius), class: `marker ${colourClass(index)}` });
}

/** A short piece of a series' line with its marker, for legends. */
function swatch(index) {
  const picture = draw("svg", { class: "swatch", viewBox: "0 0 34 14", width: 34, height: 14, "aria-hidden": "true" });
  picture.append(line(index, "M1 7H33"), marker(index, 17, 7, 4));
  return picture;
}

/** Round numbers from low to high, at most `most` of them. */
function ticks(low, high, most) {
  const raw = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Where things stand: plot area, the columns beside it, and the two scales. */
function frame(width, height, { rounds, low, high, heading, columns = [] }) {
  const beside = columns.length ? (width < 500 ? 62 : 84) : 0;
  const area = { left: 46, right: width - 12 - beside * columns.length, top: heading ? 26 : 10, bottom: height - 38 };
  const step = rounds > 1 ? (area.right - area.left - 16) / (rounds - 1) : 0;
  const start = rounds > 1 ? area.left + 8 : (area.left + area.right) / 2;
  const span = high - low || 1;
  return {
    ...area, width, height, beside,
    x: (t) => start + t * step,
    y: (value) => area.bottom - ((value - low) / span) * (area.bottom - area.top),
    roundAt: (x) => (step ? Math.max(0, Math.min(rounds - 1, Math.round((x - start) / step))) : 0),
  };
}

function grid(box, spec) {
  const parts = [];
  for (const value of ticks(spec.low, spec.high, box.height < 250 ? 4 : 6)) {
    parts.push(draw("path", { d: `M${box.left} ${box.y(value)}H${box.width - 12}`, class: value === 0 ? "axis" : "grid" }));
    parts.push(draw("text", { x: box.left - 8, y: box.y(value) + 4, class: "tick end" }, spec.format(value)));
  }
  const most = Math.max(2, Math.floor((box.right - box.left) / 48));
  for (const t of ticks(0, spec.rounds - 1, most).filter(Number.isInteger)) {
    parts.push(draw("text", { x: box.x(t), y: box.bottom + 18, class: "tick middle" }, String(t)));
  }
  parts.push(draw("text", { x: (box.left + box.right) / 2, y: box.height - 4, class: "tick middle" }, "round t"));
  return parts;
}

/** The line through a series; a null leaves a gap. */
function pathOf(values, box) {
  let pen = "M";
  return values.map((value, t) => {
    if (value === null) return (pen = "M"), "";
    const piece = `${pen}${box.x(t).toFixed(2)} ${box.y(value).toFixed(2)}`;
    pen = "L";
    return piece;
  }).join("");
}

/** A line through the values, with a marker at each, or at the rounds of `marked` if it is given. */
function drawSeries({ index, values, marked }, box, spec) {
  const every = Math.ceil(spec.rounds / Math.max(4, Math.floor((box.right - box.left) / 26))); // markers must not touch
  const points = values.map((value, t) => ({ value, t })).filter(({ value, t }) => value !== null && t % every === 0 && (!marked || marked.has(t)));
  const fill = spec.filled ? [draw("path", { d: `${pathOf(values, box)}V${box.bottom}H${box.x(0)}Z`, class: `area ${colourClass(index)}` })] : [];
  return [...fill, line(index, pathOf(values, box)), ...points.map(({ value, t }) => marker(index, box.x(t), box.y(value), 3))];
}

function drawHighlight(box, spec) {
  const x = box.x(spec.round);
  const rule = draw("path", { d: `M${x} ${box.top - 4}V${box.bottom}`, class: "rule" });
  const points = spec.series.filter(({ values }) => values[spec.round] !== null)
    .map(({ index, values }) => marker(index, x, box.y(values[spec.round]), 5.5));
  return [rule, ...points];
}

/** What does not move with the rounds stands beside the plot, on the same scale. */
function drawColumn({ title, values }, place, box, spec) {
  const left = box.right + place * box.beside + 12;
  const right = box.right + (place + 1) * box.beside;
  const middle = (left + right) / 2;
  const parts = [draw("text", { x: middle, y: 14, class: "heading middle" }, title)];
  spec.series.forEach(({ index }, i) => {
    const y = box.y(values[i]);
    parts.push(line(index, `M${left} ${y}H${right}`), marker(index, middle, y, 4));
  });
  return parts;
}

/**
 * Draw a chart into its place; with `choose` a round is highlighted, and a press chooses another. spec: rounds, round, low, high, format, series [{index, values}],
 * description (for those who do not see it); optional heading, columns [{title, values}], filled, height.
 */
function drawChart(place, spec, choose) {
  const width = Math.max(260, place.clientWidth);
  const height = spec.height ?? (width < 500 ? 210 : 270);
  const box = frame(width, height, spec);
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.description });
  if (spec.heading) picture.append(draw("text", { x: (box.left + box.right) / 2, y: 14, class: "heading middle" }, spec.heading));
  picture.append(...grid(box, spec));
  for (const series of spec.series) picture.append(...drawSeries(series, box, spec));
  (spec.columns ?? []).forEach((column, i) => picture.append(...drawColumn(column, i, box, spec)));
  if (choose) {
    picture.append(...drawHighlight(box, spec));
    followPointer(picture, box, width, choose);
  }
  place.replaceChildren(picture);
}

/** A press on the chart chooses the round under it; the slider does the same from the keyboard. */
function followPointer(picture, box, width, choose) {
  picture.addEventListener("pointerdown", (event) => {
    const { left, width: shown } = picture.getBoundingClientRect();
    const x = ((event.clientX - left) * width) / shown;
    if (x >= box.left && x <= box.right) choose(box.roundAt(x));
  });
}
