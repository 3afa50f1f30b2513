"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const root = document.documentElement;
const hidden = new Set(); // places of the contenders that are switched off
const phone = matchMedia("(max-width: 640px)");
const dark = matchMedia("(prefers-color-scheme: dark)");

// Every colour "@name" becomes the value of the CSS variable --name, so that plots follow the theme.
function painted(value, style, key = "") {
  if (typeof value === "string") return key.endsWith("color") && value[0] === "@" ? style.getPropertyValue("--" + value.slice(1)).trim() : value;
  if (Array.isArray(value)) return value.map((item) => painted(item, style, key));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, painted(item, style, key)]));
}

function fitted(layout) {
  const { ticktext, tickangle, tickmode, ...xaxis } = layout.xaxis;
  if (!phone.matches) return layout;
  // Fingers scroll the page, they do not draw boxes; and long names of layers leave no room for the plot.
  const small = { ...layout, dragmode: false, height: Math.min(layout.height, 520), font: { ...layout.font, size: 12 } };
  if (!ticktext) return small;
  return { ...small, xaxis: { ...xaxis, tickmode: "auto", tickvals: undefined, title: { text: "Layer, by its place in the model" } } };
}

function draw() {
  const style = getComputedStyle(root);
  for (const [name, figure] of Object.entries(figures)) {
    const data = figure.data.map((trace) => ({ ...trace, visible: !hidden.has(trace.meta) }));
    const still = phone.matches || figure.layout.xaxis.fixedrange;
    // A list of what may be there: plotly's own would offer to upload the plot.
    const options = { displaylogo: false, displayModeBar: still ? false : "hover", plotlyServerURL: "",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      toImageButtonOptions: { format: "svg", filename: "thinwire-" + name } };
    Plotly.react(name, painted(data, style), fitted(painted(figure.layout, style)), options);
  }
}

document.getElementById("theme").addEventListener("click", () => {
  const now = root.dataset.theme || (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  history.replaceState(null, "", "#" + root.dataset.theme); // a reload keeps it
  draw();
});

const chips = [...document.querySelectorAll(".chips button")];
const placeOf = (chip) => Number(chip.dataset.place);

function show(places) {
  hidden.clear();
  for (const chip of chips) {
    if (!places.has(placeOf(chip))) hidden.add(placeOf(chip));
    chip.setAttribute("aria-pressed", String(places.has(placeOf(chip))));
  }
  draw();
}

for (const chip of chips) {
  const shown = () => new Set(chips.map(placeOf).filter((place) => !hidden.has(place)));
  chip.addEventListener("click", () => {
    const places = shown();
    if (!places.delete(placeOf(chip))) places.add(placeOf(chip));
    show(places);
  });
  // The two clicks before have cancelled each other: this one alone, or all again.
  chip.addEventListener("dblclick", () => {
    const alone = shown().size === 1 && !hidden.has(placeOf(chip));
    show(new Set(alone ? chips.map(placeOf) : [placeOf(chip)]));
  });
}

for (const head of document.querySelectorAll("thead th[aria-sort]")) {
  head.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.children) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const place = head.cellIndex;
    const worth = (row) => row.cells[place].dataset.order;
    const rows = [...body.rows].sort((a, b) => {
      if (place === 0) return (up ? 1 : -1) * a.cells[0].textContent.localeCompare(b.cells[0].textContent);
      if (worth(a) === undefined || worth(b) === undefined) return (worth(a) === undefined) - (worth(b) === undefined);
      return (up ? 1 : -1) * (worth(a) - worth(b));
    });
    body.append(...rows);
  });
}

dark.addEventListener("change", draw);
phone.addEventListener("change", draw);
draw();
const watcher = new ResizeObserver((seen) => seen.forEach(({ target }) => Plotly.Plots.resize(target)));
for (const name of Object.keys(figures)) watcher.observe(document.getElementById(name));
root.dataset.drawn = "yes";
