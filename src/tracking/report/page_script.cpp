#include "tracking/report/page.h"

namespace tutti {

std::string_view page_script() {
  // Adds a read-out under the pointer. The page is complete without it.
  return R"js(
for (const plot of document.querySelectorAll("svg.plot")) {
  const numbers = (text) => text.split(",").map(Number);
  const [left, right, bottom, top] = numbers(plot.dataset.frame);
  const [firstStep, lastStep, low, high] = numbers(plot.dataset.range);
  const scaled = plot.dataset.log ? Math.log : (value) => value;
  const xOf = (step) => left + (step - firstStep) / (lastStep - firstStep) * (right - left);
  const yOf = (value) => bottom + (scaled(value) - scaled(low)) / (scaled(high) - scaled(low)) * (top - bottom);
  const curves = [...plot.querySelectorAll(".curve")].filter((curve) => curve.dataset.steps).map((curve) => ({
    run: [...curve.classList].find((name) => name.startsWith("run")),
    name: curve.dataset.name,
    steps: numbers(curve.dataset.steps),
    values: numbers(curve.dataset.values),
    lineValues: numbers(curve.dataset.smooth || curve.dataset.values),
    isSmoothed: "smooth" in curve.dataset }));
  const element = (name, attributes, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  };
  const nearest = (steps, wanted) => {
    let from = 0, to = steps.length - 1;
    while (to - from > 1) {
      const middle = (from + to) >> 1;
      if (steps[middle] > wanted) to = middle; else from = middle;
    }
    return wanted - steps[from] > steps[to] - wanted ? to : from;
  };
  const shown = (value) => String(Number(value.toPrecision(4))).replace("-", "\u2212");
  let overlay = null, readout = null;
  const clear = () => { overlay?.remove(); readout?.remove(); overlay = readout = null; };
  plot.addEventListener("pointerleave", clear);
  plot.addEventListener("pointermove", (event) => {
    clear();
    if (!curves.length) return;
    const box = plot.getBoundingClientRect();
    const scale = plot.viewBox.baseVal.width / box.width;
    const x = Math.min(right, Math.max(left, (event.clientX - box.left) * scale));
    const wanted = firstStep + (x - left) / (right - left) * (lastStep - firstStep);
    const found = curves.map((curve) => ({ curve, at: nearest(curve.steps, wanted) }));
    const gap = ({ curve, at }) => Math.abs(curve.steps[at] - wanted);
    const step = found.reduce((best, one) => gap(best) > gap(one) ? one : best);
    const atStep = step.curve.steps[step.at];
    overlay = element("g", {}, plot);
    element("line", { class: "cursor", x1: xOf(atStep), x2: xOf(atStep), y1: bottom, y2: top }, overlay);
    readout = document.createElement("div");
    readout.className = "readout";
    const heading = document.createElement("p");
    heading.textContent = "step " + atStep.toLocaleString("en");
    const table = document.createElement("table");
    for (const { curve, at } of found) {
      if (Math.abs(xOf(curve.steps[at]) - xOf(atStep)) > 8) continue;
      element("circle", { class: "mark " + curve.run, cx: xOf(curve.steps[at]), cy: yOf(curve.lineValues[at]), r: 4 }, overlay);
      const row = table.insertRow();
      row.insertCell().textContent = curve.name;
      const raw = shown(curve.values[at]);
      row.insertCell().textContent = curve.isSmoothed ? shown(curve.lineValues[at]) + "  (raw " + raw + ")" : raw;
    }
    readout.append(heading, table);
    plot.parentElement.append(readout);
    const place = xOf(atStep) / scale;
    const isRight = place > box.width / 2;
    readout.style.left = (isRight ? place - readout.offsetWidth - 14 : place + 14) + "px";
    readout.style.top = box.top - plot.parentElement.getBoundingClientRect().top + 14 + "px";
  });
}
)js";
}

}  // namespace tutti
