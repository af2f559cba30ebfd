// Panels of the chosen plan: its tiles, and the latest request that was recorded on it. The pictures are made by the server.

import {age, bytes, figure, make, milliseconds, shapes, shorten, table} from './draw.js';
import {colourOf} from './panels.js';

const id = name => document.getElementById(name);
const AGAIN_MS = 5000;
let asked = '', askedAt = 0, known = null, shownOf = '', why = '', isAsking = false;

/** Offer the plans there are, and return the chosen one: the most used, until somebody chooses. */
export function choose(status) {
  const all = status.models.flatMap(model => model.plans.map(plan => ({plan, text: `${shorten(model.name, 40)}: ${shorten(shapes(plan), 60)}, ${plan.planner}`})));
  const list = id('plan'), key = all.map(({plan, text}) => plan.plan + text).join('\n');
  const current = all.find(({plan}) => plan.plan === list.value)?.plan;
  if (list.shown !== key) {
    list.shown = key;
    list.replaceChildren(...all.map(({plan, text}) => make('option', {value: plan.plan}, text)));
  }
  const most = all.map(({plan}) => plan).reduce((best, plan) => plan.requests > (best?.requests ?? -1) ? plan : best, null);
  // Twice as many: plans that are used alike do not take turns.
  const chosen = current && (list.touched || most.requests <= 2 * current.requests) ? current : most;
  list.value = chosen?.plan ?? '';
  return chosen;
}

/** Bring the pictures of a plan if they are not here, or old; return what the recorded request sent, as [from, to, bytes]. */
export function refresh(plan, now, then) {
  if (shownOf !== (plan?.plan ?? '')) {
    // Pictures of another plan are not this one's.
    [shownOf, asked, known, why] = [plan?.plan ?? '', '', null, ''];
    place(null);
  }
  if (plan) {
    const key = `${plan.plan} ${plan.epoch} ${plan.serves}`, isNew = key !== asked;
    if (!isAsking && (isNew || performance.now() - askedAt > AGAIN_MS)) bring(plan.plan, key, then);
  }
  id('recorded').textContent = !known ? why : known.recorded_at
    ? `recorded ${age(now - known.recorded_at)} ago, clocks agree within ${milliseconds(known.clock_error_s)}`
    : 'no request was recorded yet: one in some seconds is, of those that come through this server';
  return known?.traffic ?? [];
}

async function bring(plan, key, then) {
  isAsking = true;
  askedAt = performance.now();
  try {
    const answer = await fetch(`/live/plans/${plan}`), found = answer.ok ? await answer.json() : null, said = found ? '' : await answer.text();
    if (plan !== shownOf) return; // somebody chose another one meanwhile
    why = said && `no pictures: ${said}`;
    if (found) {
      known = found;
      asked = key;
      place(known);
    }
    then();
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
