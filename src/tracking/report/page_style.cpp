#include "tracking/report/page.h"

namespace tutti {

std::string_view page_style() {
  // The colours of runs and stages can be told apart with every kind of colour blindness (after M. Okabe and K. Ito,
  // "Color Universal Design", 2008). They are darker on a light background than on a dark one.
  return R"css(
:root { color-scheme: light dark;
  --ground: #ffffff; --ink: #1b1f24; --soft: #5b6470; --faint: #8a929d; --rule: #e4e7eb; --grid: #eceef1;
  --tint: #f5f7f9; --shade: rgb(27 31 36 / 0.13); --warning: #b3261e;
  --run0: #0b6bb0; --run1: #c4520c; --run2: #007f5f; --run3: #a4478e; --run4: #7a6400; --run5: #515b67;
  --data: #e69f00; --forward: #7cc4ee; --backward: #1f6fb5; --waiting: #d0570e; --optimizer: #0a8a66; --other: #a7aeb8;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", Arial, sans-serif;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #14171b; --ink: #e5e8ec; --soft: #a2abb6; --faint: #7d8691; --rule: #2b3138; --grid: #23282e;
  --tint: #1b2026; --shade: rgb(0 0 0 / 0.55); --warning: #ff8a80;
  --run0: #5db4f0; --run1: #f3904f; --run2: #3cc79b; --run3: #df9bcd; --run4: #dcc04a; --run5: #b4bdc8;
  --data: #d99a10; --forward: #78bfe8; --backward: #2f7fc4; --waiting: #d4611b; --optimizer: #16906c; --other: #7f8893; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 var(--sans);
  font-variant-numeric: tabular-nums; }
main, header, footer { max-width: 1168px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 44px; }
.kicker { margin: 0 0 4px; color: var(--soft); font-size: 13px; }
h1 { margin: 0; font-size: 30px; line-height: 1.2; font-weight: 650; letter-spacing: -0.015em; overflow-wrap: anywhere; }
section { margin-top: 52px; }
h2 { margin: 0 0 18px; padding-bottom: 8px; border-bottom: 1px solid var(--rule); font-size: 19px; font-weight: 620;
  letter-spacing: -0.008em; }
h3 { margin: 0; font-size: 15px; font-weight: 620; overflow-wrap: anywhere; }
small { display: block; color: var(--soft); font-size: 12.5px; font-weight: 400; }
.note { color: var(--soft); font-size: 12.5px; }
.warning { color: var(--warning); font-weight: 550; font-size: 12.5px; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
/* A shadow where a box can be scrolled: its covers move with the content, the shadows stay. */
.scroll { overflow-x: auto; background:
  linear-gradient(to right, var(--ground) 40%, transparent) left / 40px 100% no-repeat local,
  linear-gradient(to left, var(--ground) 40%, transparent) right / 40px 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 12px 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / 12px 100% no-repeat scroll; }

table { border-collapse: collapse; font-size: 14.5px; }
th, td { padding: 9px 28px 9px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule); }
th:last-child, td:last-child { padding-right: 0; }
thead th { padding-top: 0; padding-bottom: 7px; color: var(--soft); font-size: 12.5px; font-weight: 500;
  vertical-align: bottom; white-space: nowrap; }
.summary { width: 100%; margin-top: 34px; }
.summary tbody tr:last-child > * { border-bottom: 0; }
.summary td { font-size: 17px; white-space: nowrap; }
.summary td small { white-space: normal; max-width: 20em; margin-left: auto; }
.summary .run { font-weight: 600; font-size: 15.5px; line-height: 25px; overflow-wrap: anywhere; min-width: 180px; }
.summary .run small { padding-left: 36px; white-space: nowrap; }
th.number, td.number { text-align: right; }
.none { color: var(--faint); }
.hyperparameters th, .hyperparameters td { padding-top: 6px; padding-bottom: 6px; }
.hyperparameters tbody th { min-width: 240px; padding-left: 12px; font-weight: 400; color: var(--soft); }
.hyperparameters tbody td { min-width: 150px; font-family: var(--mono); font-size: 13px; line-height: 22px; }
.hyperparameters thead th { color: var(--ink); font-weight: 600; font-size: 14px; }
.differs > * { background: var(--tint); }
.hyperparameters .differs th { color: var(--ink); font-weight: 600; }
.hyperparameters .differs td { font-weight: 600; }
.sign { float: right; color: var(--soft); }

.swatch { vertical-align: -1px; margin-right: 10px; flex: none; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 40px 40px; }
.charts > .wide { grid-column: 1 / -1; }
.narrow { display: none; }
@media (max-width: 760px) {
  .charts { grid-template-columns: minmax(0, 1fr); }
  .wide { display: none; }
  .narrow { display: block; } }
figure { margin: 0; position: relative; min-width: 0; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; column-gap: 12px; margin-bottom: 8px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 22px; flex-basis: 100%; margin: 2px 0 0; padding: 0; list-style: none;
  font-size: 13px; color: var(--soft); }
.legend li { display: flex; align-items: center; column-gap: 6px; min-width: 0; }
.legend .name { overflow-wrap: anywhere; }
.legend .swatch { margin-right: 1px; }
.legend b { color: var(--ink); font-weight: 600; }
.plot, .bars { display: block; width: 100%; height: auto; overflow: visible; }
.grid { stroke: var(--grid); }
.base, .notch { stroke: var(--faint); }
.tick, .total { fill: var(--soft); font-size: 11.5px; }
.row { text-anchor: end; }
.column { text-anchor: middle; }
.line { fill: none; stroke: var(--run); stroke-width: 1.75; stroke-linejoin: round; stroke-linecap: round; }
.raw { stroke-width: 1; stroke-opacity: 0.28; }
.companion .line { stroke-dasharray: 5 4; }
.mark { fill: var(--run); stroke: var(--ground); stroke-width: 1; }
.resumed { fill: none; stroke: var(--run); stroke-width: 1; stroke-dasharray: 2 4; stroke-opacity: 0.75; }
.lost { fill: var(--ground); stroke: var(--run); stroke-width: 1.75; }
.run0 { --run: var(--run0); } .run1 { --run: var(--run1); } .run2 { --run: var(--run2); }
.run3 { --run: var(--run3); } .run4 { --run: var(--run4); } .run5 { --run: var(--run5); }
.stage { stroke: var(--ground); stroke-width: 1; }
.data { fill: var(--data); } .forward { fill: var(--forward); } .backward { fill: var(--backward); }
.waiting { fill: var(--waiting); } .optimizer { fill: var(--optimizer); } .other { fill: var(--other); }
.hatch { fill: url(#hatch); }
.narrow .hatch { fill: url(#hatch-narrow); }
.hatch-line { stroke: #ffffff; stroke-opacity: 0.3; stroke-width: 3.4; }
.share { font-size: 12px; font-weight: 600; text-anchor: middle; pointer-events: none; fill: #ffffff; }
.on-data, .on-forward, .on-other { fill: #14171b; }
.on-waiting { paint-order: stroke; stroke: var(--waiting); stroke-width: 4; stroke-linejoin: round; }
.total { fill: var(--ink); font-size: 12.5px; }
.heading { fill: var(--ink); font-size: 13.5px; font-weight: 600; }
.finding { margin: 12px 0 0; font-size: 14px; color: var(--soft); }
.finding b { color: var(--ink); font-weight: 600; }

.cursor { stroke: var(--faint); stroke-width: 1; pointer-events: none; }
.readout { position: absolute; z-index: 1; pointer-events: none; padding: 7px 11px; border: 1px solid var(--rule);
  border-radius: 6px; background: var(--ground); box-shadow: 0 3px 14px rgb(0 0 0 / 0.13); font-size: 12.5px;
  white-space: nowrap; }
.readout table { font-size: 12.5px; }
.readout td { padding: 1px 12px 1px 0; border: 0; }
.readout td:last-child { padding-right: 0; text-align: right; font-weight: 600; }
.readout p { margin: 0 0 3px; color: var(--soft); }

details { border-bottom: 1px solid var(--rule); padding: 9px 0; }
summary { cursor: pointer; font-weight: 550; }
summary .swatch { margin-left: 6px; }
summary small { display: inline; margin-left: 10px; }
pre { margin: 10px 0 4px; padding: 12px 16px; overflow-x: auto; border-radius: 6px; background: var(--tint);
  font: 13px/1.55 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; }
footer { margin-top: 60px; padding-top: 14px; padding-bottom: 44px; color: var(--soft); font-size: 12.5px; }
footer p { margin: 0 0 3px; overflow-wrap: anywhere; }
/* A window narrower than a figure is wide makes texts and lines in it small: they are larger in the figure's units. */
@media (max-width: 560px) {
  main, header, footer { padding: 0 20px; }
  header { padding-top: 28px; }
  section { margin-top: 40px; }
  h1 { font-size: 26px; }
  .tick { font-size: 16px; }
  .share { font-size: 16px; }
  .total { font-size: 17px; }
  .heading { font-size: 19px; }
  .line { stroke-width: 2.5; }
  .raw { stroke-width: 1.4; }
  .summary thead { display: none; }
  .summary, .summary tbody { display: block; }
  .summary tr { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px 24px; padding: 14px 0;
    border-bottom: 1px solid var(--rule); }
  .summary tr:last-child { border-bottom: 0; }
  .summary th, .summary td { padding: 0; border: 0; }
  .summary .run { grid-column: 1 / -1; }
  .summary td.number { text-align: left; }
  .summary td::before { content: attr(data-label); display: block; color: var(--soft); font-size: 12.5px; }
  .hyperparameters { width: 100%; }
  .hyperparameters th, .hyperparameters td { padding-right: 14px; }
  .hyperparameters tbody th { min-width: 0; padding-left: 8px; overflow-wrap: anywhere; }
  .hyperparameters tbody td { min-width: 72px; overflow-wrap: anywhere; }
  .sign { margin-left: 8px; } }
@media print { .charts figure { break-inside: avoid; } }
)css";
}

}  // namespace tutti
