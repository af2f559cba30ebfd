// Hover texts, and looking closer at a timeline. Without it the page shows the same pictures, with the browser's own hover texts.
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
