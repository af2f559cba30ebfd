// Panels of the chosen plan: its tiles, and the latest request that was recorded on it. The pictures are made by the server.

import {age, bytes, figure, make, milliseconds, shapes, shorten, table} from './draw.js';
import {colourOf} from './panels.js';

const id = name => document.getElementById(name);
const AGAIN_MS = 5000;
let asked = '', askedAt = 0, known = null, isAsking = false;

/** Offer the plans there are, and return the chosen one: the most used, until somebody chooses. */
export function choose(status) {
  const all = status.models.flatMap(model => model.plans.map(plan => ({plan, text: `${shorten(model.name, 40)}: ${shorten(shapes(plan), 60)}, ${plan.planner}`})));
  const list = id('plan'), key = all.map(({plan, text}) => plan.plan + text).join('\n');
  if (list.shown !== key) {
    const before = list.value;
    list.shown = key;
    list.replaceChildren(...all.map(({plan, text}) => make('option', {value: plan.plan}, text)));
    if (all.some(({plan}) => plan.plan === before)) list.value = before;
  }
  const current = all.find(({plan}) => plan.plan === list.value)?.plan;
  if (!list.touched && all.length && !current?.requests) list.value = all.reduce((best, {plan}) => plan.requests > best.requests ? plan : best, all[0].plan).plan;
  return all.find(({plan}) => plan.plan === list.value)?.plan;
}

/** Bring the pictures of a plan if they are not here, or old; return what the recorded request sent, as [from, to, bytes]. */
export function refresh(plan, now, then) {
  if (!plan) {
    known = null;
    asked = '';
    place(null);
  } else {
    const key = `${plan.plan} ${plan.epoch} ${plan.serves}`, isNew = key !== asked;
    if (!isAsking && (isNew || performance.now() - askedAt > AGAIN_MS)) bring(plan.plan, key, then);
  }
  id('recorded').textContent = !known ? '' : known.recorded_at
    ? `recorded ${age(now - known.recorded_at)} ago, clocks agree within ${milliseconds(known.clock_error_s)}`
    : 'no request was recorded yet: one in some seconds is, of those that come through this server';
  return known?.traffic ?? [];
}

async function bring(plan, key, then) {
  isAsking = true;
  askedAt = performance.now();
  try {
    const answer = await fetch(`/live/plans/${plan}`);
    if (answer.ok) {
      known = await answer.json();
      asked = key;
      place(known);
      then();
    }
  } catch {
    // The stream says that the server is away.
  } finally {
    isAsking = false;
  }
}

function place(found) {
  picture(id('measured'), found?.measured_svg ?? '', 'No recorded request to show.', []);
  picture(id('predicted'), found?.predicted_svg ?? '', 'Nothing is predicted for what serves.', []);
  picture(id('layers'), found?.layers_svg ?? '', 'No plan, no tiles.', found?.agents ?? []);
  const rows = found?.exchanges ?? [];
  table(id('exchanges'), rows, [['of'], ['messages', 1], ['bytes', 1], ['longest wait', 1]], () => rows.map(([values, messages, size, wait]) => ({
    cells: [make('span', {title: values}, shorten(values, 40)), `${messages}`, figure(size, bytes(size)), milliseconds(wait)]})));
}

/** Place a picture of the server's; it is parsed as XML, and its devices get the colours that their names have here. */
function picture(element, text, instead, devices) {
  if (element.shown === text + instead) return;
  element.shown = text + instead;
  if (!text) return element.replaceChildren(make('p', {class: 'note'}, instead));
  const drawn = document.importNode(new DOMParser().parseFromString(text, 'image/svg+xml').documentElement, true);
  devices.slice(0, 8).forEach((name, place) => drawn.style.setProperty(`--d${place}`, colourOf(name)));
  for (const title of drawn.querySelectorAll('title')) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  const [left, top] = [element.scrollLeft, element.scrollTop];
  element.replaceChildren(drawn);
  element.scrollTo(left, top);
}

document.addEventListener('pointermove', event => {
  const mark = event.target.closest?.('[data-tip]'), tip = id('tip');
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8))}px`;
});
id('plan').addEventListener('change', event => { event.target.touched = true; });
