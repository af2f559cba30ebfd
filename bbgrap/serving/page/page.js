// What the server tells, second by second, and what is shown of it. A page that loses its server says so, and tries until it is back.

import {age} from './draw.js';
import * as panels from './panels.js';
import * as plans from './plans.js';

const id = name => document.getElementById(name);
const SILENT_MS = 5000, MOST_POINTS = 300, MOST_EVENTS = 200;
let source = null, heardAt = performance.now(), shownAt = 0, latest = null, incarnation = 0, away = '';
let points = [], happened = [];

function listen() {
  source?.close();
  source = new EventSource('/live');
  const on = (name, act) => source.addEventListener(name, event => {
    heardAt = performance.now();
    act(JSON.parse(event.data));
  });
  on('history', told => { points = told; });
  on('status', told => {
    if (told.incarnation !== incarnation) {
      if (incarnation) points = [];
      happened = [];
      incarnation = told.incarnation;
    }
    const now = told.latest.map(entry => [entry.model, entry.per_s, ...entry.quantiles_s, entry.waiting, entry.running]);
    if (now.length && points.at(-1)?.[0] !== told.now) points = [...points, [told.now, ...now]].slice(-MOST_POINTS);
    [latest, away, shownAt] = [told, '', Date.now()];
    update();
    trouble();
  });
  on('happened', told => {
    const last = happened.at(-1)?.number ?? 0;
    happened = [...happened, ...told.filter(event => event.number > last)].slice(-MOST_EVENTS);
    panels.events(happened);
  });
  on('away', told => {
    away = told.why;
    trouble();
  });
}

function update() {
  panels.summary(latest);
  for (const node of latest.nodes) panels.colourOf(node.name);
  panels.models(latest, latest.rates);
  panels.nodes(latest);
  panels.plans(latest);
  panels.events(happened);
  const plan = plans.choose(latest);
  const model = latest.models.find(entry => entry.plans.some(known => known.plan === plan?.plan));
  panels.charts(points, latest, model?.model);
  panels.segments(plan);
  panels.traffic(latest, plans.refresh(plan, latest.now, update));
}

function trouble() {
  const isGone = performance.now() - heardAt > SILENT_MS || source.readyState !== EventSource.OPEN;
  const why = isGone ? 'The connection to this server is lost; trying until it is back.' : away ? `The coordinator is away: ${away}.` : '';
  const text = why && latest ? `${why} What is shown is ${age((Date.now() - shownAt) / 1e3)} old.` : why;
  const state = isGone ? 'no server' : away ? 'no coordinator' : 'live';
  if (id('state').textContent !== state) id('state').textContent = state;
  id('state').className = `pill ${why ? 'bad' : 'good'}`;
  id('trouble').textContent = text;
  id('trouble').hidden = !text;
  document.body.classList.toggle('stale', Boolean(why));
}

// A browser gives up on a stream that was refused, and may not notice one that is silent.
setInterval(() => {
  if (source.readyState === EventSource.CLOSED || performance.now() - heardAt > 2 * SILENT_MS) {
    heardAt = performance.now() - SILENT_MS - 1;
    listen();
  }
  trouble();
}, 1000);

const theme = id('theme');
function paint() {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
}
try { theme.value = localStorage.getItem('bbgrap-theme') ?? ''; } catch { /* storage is switched off: the choice lasts as long as the page */ }
theme.addEventListener('change', () => {
  paint();
  try { localStorage.setItem('bbgrap-theme', theme.value); } catch { /* as above */ }
});
id('plan').addEventListener('change', () => latest && update());
paint();
listen();
