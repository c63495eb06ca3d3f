"""How the report's page looks: on a screen wide or narrow, light or dark, and on paper."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ground: #fbfbfa; --panel: #ffffff; --ink: #1b1f23;
  --muted: #57606a; --line: #d5dade; --accent: #005f96; --warn: #8a4b00; --warn-ground: #fff5e6; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14181c; --panel: #1c2228; --ink: #e6e9ec; --muted: #a3adb7; --line: #38424c;
    --accent: #6cb8ee; --warn: #f0b35f; --warn-ground: #2c2418; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
header, main, footer { max-width: 68rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 1.75rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; padding-top: .5rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { margin: .4rem 0; max-width: 46rem; overflow-wrap: anywhere; }
a { color: var(--accent); overflow-wrap: anywhere; }
a:focus-visible, .scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.details, .muted, figcaption, caption { color: var(--muted); }
nav ul { display: flex; flex-wrap: wrap; gap: 0 .35rem; list-style: none; padding: 0;
  margin: .75rem -.35rem 0; }
nav a { display: inline-block; padding: .35rem; font-size: .9rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(12.5rem, 1fr));
  gap: .75rem; margin: 0; }
.figures div { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .8rem; }
.figures dt { color: var(--muted); font-size: .85rem; }
.figures dd { margin: 0; }
.figures .value { font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.figures .range { color: var(--muted); font-size: .85rem; }
.said { margin: 0; }
.said dt { font-weight: 600; margin-top: .75rem; }
.said dd { margin: 0; max-width: 52rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: .85rem; padding-bottom: .3rem; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
tbody th { font-weight: 400; }
th, td.number { white-space: nowrap; }
th.number, td.number { text-align: right; }
.bars { width: 16rem; min-width: 8rem; white-space: nowrap; }
.bar { display: inline-block; height: .8rem; vertical-align: middle; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }
@media screen and (prefers-color-scheme: dark) { .bar { filter: brightness(1.3); } }
.hidden { background: repeating-linear-gradient(135deg, currentColor 0 2px, transparent 2px 5px);
  outline: 1px solid; outline-offset: -1px; }
figure { margin: .75rem 0; }
figure .scroll { background: #ffffff; border: 1px solid var(--line); border-radius: .5rem;
  padding: .5rem; margin: 0; }
svg.picture { display: block; width: 100%; height: auto; margin: 0 auto; }
svg.picture * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { font-size: .85rem; margin-top: .3rem; max-width: 52rem; }
.reasons, .sources { padding-left: 1.4rem; font-size: .92rem; max-width: 56rem; }
.reasons { color: var(--muted); }
.reasons li, .sources li { margin: .35rem 0; overflow-wrap: anywhere; }
.figures + p { margin-top: .75rem; }
.warnings { list-style: none; padding: 0; margin: .75rem 0; }
.warnings li { background: var(--warn-ground); border-left: 3px solid var(--warn);
  padding: .4rem .8rem; margin: .4rem 0; max-width: 52rem; overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; margin: 0;
  padding: .75rem; font: .85rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
footer { margin-top: 3rem; padding-bottom: 2rem; color: var(--muted); font-size: .85rem; }
@media (max-width: 40rem) {
  header, main, footer { padding-left: .9rem; padding-right: .9rem; }
  .figures { grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); }
  .figures .value { font-size: 1.15rem; }
  nav a { padding: .6rem .35rem; }
}
@media print {
  :root { --ground: #ffffff; --panel: #ffffff; --ink: #000000; --muted: #444444; --line: #bbbbbb;
    --accent: #000000; --warn: #8a4b00; --warn-ground: #ffffff; }
  body { font-size: 10pt; }
  nav { display: none; }
  .scroll { overflow: visible; }
  svg.picture { min-width: 0 !important; max-height: 22cm; }
  figure, tr, li, .figures div { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; }
  table { font-size: 7.5pt; }
  th, td, td.number { padding: .15rem .5rem .15rem 0; white-space: normal; }
  .bars { width: 9rem; min-width: 5rem; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
}
"""
