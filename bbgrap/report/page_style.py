"""The style and the script of a report's page."""

from __future__ import annotations

from bbgrap.report.svg import STYLE

PAGE_STYLE = (
    STYLE
    + """
body.bbgrap { margin: 0; background: var(--page); color: var(--ink); font-size: 14px; line-height: 1.45; }
main { max-width: 1200px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 22px; font-weight: 650; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 16px; font-weight: 650; margin: 40px 0 4px; }
p { margin: 2px 0 12px; color: var(--soft); max-width: 76ch; }
dl { display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 14px 0 0; }
dt { color: var(--soft); font-size: 12px; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
figure { margin: 0 0 16px; border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
.view { overflow-x: auto; }
figure svg { display: block; width: 100%; height: auto; }
.tools { display: flex; gap: 8px; align-items: center; padding: 6px 10px;
  border-bottom: 1px solid var(--line); color: var(--soft); font-size: 12px; }
.tools button { font: inherit; color: var(--ink); background: var(--band); border: 1px solid var(--line); border-radius: 5px;
  min-width: 30px; }
.scroll { max-height: 480px; overflow: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: 4px 10px; border-bottom: 1px solid var(--line); font-weight: 400; }
thead th { position: sticky; top: 0; background: var(--band); color: var(--soft); font-size: 12px; z-index: 1; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { width: 34%; }
.soft { color: var(--soft); }
.bar { display: flex; height: 12px; background: var(--band); border-radius: 2px; overflow: hidden; min-width: 120px; }
.bar.thin { height: 6px; margin: 1px 0; }
.b { display: block; height: 100%; }
.b.compute { background: var(--compute); } .b.send { background: var(--send); }
.b.receive { background: var(--receive); } .b.wait { background: var(--wait); }
.heat { background: color-mix(in srgb, var(--send) calc(var(--heat) * 0.4), transparent); }
#tip { position: fixed; z-index: 9; max-width: 460px; padding: 6px 9px; border-radius: 6px; background: var(--ink); color: var(--page);
  font-size: 12px; pointer-events: none; overflow-wrap: anywhere; display: none; }
.hidden { display: none; }
@media print { .tools { display: none; } .scroll { max-height: none; } }
"""
)
"""For screens light and dark, and for paper."""

SCRIPT = """
'use strict';
const tip = document.getElementById('tip');
for (const mark of document.querySelectorAll('svg [class]')) {
  const title = mark.querySelector(':scope > title');
  if (title) { mark.dataset.tip = title.textContent; title.remove(); }
}
document.addEventListener('mousemove', event => {
  const mark = event.target.closest?.('[data-tip]');
  tip.style.display = mark ? 'block' : 'none';
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + 'px';
});
for (const figure of document.querySelectorAll('figure.time')) {
  const svg = figure.querySelector('svg'), view = figure.querySelector('.view'), names = svg.querySelector('.names');
  const box = svg.viewBox.baseVal, left = +svg.dataset.left, width = box.width, height = box.height;
  let zoom = 1;
  const pin = () => names.setAttribute('transform', `translate(${zoom > 1 ? view.scrollLeft : 0} 0)`);
  const show = wanted => {
    const middle = (view.scrollLeft + view.clientWidth / 2) / svg.getBoundingClientRect().width;
    zoom = Math.min(64, Math.max(1, wanted));
    const full = left + (width - left) * zoom;
    svg.setAttribute('viewBox', `0 0 ${full} ${height}`);
    svg.style.width = zoom > 1 ? full + 'px' : '';
    const stretched = `translate(${left * (1 - zoom)} 0) scale(${zoom} 1)`;
    for (const group of svg.querySelectorAll('.moving')) group.setAttribute('transform', stretched);
    for (const tick of svg.querySelectorAll('.tick')) {
      tick.setAttribute('transform', `translate(${left + (tick.dataset.x - left) * zoom} 0)`);
      if (tick.classList.contains('fine')) tick.style.display = zoom >= 4 ? 'inline' : '';
    }
    view.scrollLeft = middle * svg.getBoundingClientRect().width - view.clientWidth / 2;
    pin();
  };
  view.addEventListener('scroll', pin);
  figure.querySelector('.closer').addEventListener('click', () => show(zoom * 2));
  figure.querySelector('.wider').addEventListener('click', () => show(zoom / 2));
  const flows = svg.querySelector('.flows');
  figure.querySelector('.halos').addEventListener('change', event => flows.classList.toggle('hidden', !event.target.checked));
}
"""
"""Hover texts, and looking closer at a timeline. Without it the page shows the same pictures, with the browser's own hover texts."""
