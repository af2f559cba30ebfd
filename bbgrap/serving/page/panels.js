// Panels that are drawn of the status alone: requests, nodes, links, plans, traffic, segments, events.

import {age, bar, bytes, chart, figure, make, map, memory, milliseconds, perSecond, rate, shapes, shorten, show, table} from './draw.js';

const COLOURS = 8, MOST_MODELS = 12;
/** Of lines in charts: those of nodes and lanes come last. */
const SERIES = ['d4', 'd3', 'd5', 'd6', 'd7', 'd2', 'd1', 'd0'];
const id = name => document.getElementById(name);
const order = [];

/** The colour of a node: the same everywhere on this page. */
export function colourOf(name) {
  if (name === 'coordinator') return 'var(--soft)';
  if (!order.includes(name)) order.push(name);
  return `var(--c${order.indexOf(name) % COLOURS})`;
}

function dotted(colour, text) {
  const dot = make('span', {class: 'dot'});
  dot.style.background = colour;
  return [dot, text];
}

const named = name => dotted(colourOf(name), name);
const marked = (colour, text) => dotted(`var(--${colour})`, text);

export function summary(status) {
  const alive = status.nodes.filter(node => node.state === 'alive');
  const versions = [...new Set([status.version, ...alive.map(node => node.version)])];
  const count = (number, what) => `${number} ${what}${number === 1 ? '' : 's'}`;
  show(id('summary'), [alive.length, status.models.length, versions, age(status.uptime_s)], () =>
    `${count(alive.length, 'node')} · ${count(status.models.length, 'model')} · up ${age(status.uptime_s)} · ` +
    (versions.length === 1 ? `version ${versions[0]}` : `different versions: ${versions.join(', ')}`));
}

/** The models with most requests, by name. */
function busiest(status, most) {
  const asked = model => Object.values(model.requests).reduce((sum, count) => sum + count, model.waiting + model.running);
  return [...status.models].sort((one, other) => asked(other) - asked(one)).slice(0, most).sort((one, other) => one.name < other.name ? -1 : +(one.name > other.name));
}

export function models(status, rates) {
  const known = new Map(rates.map(entry => [entry.model, entry]));
  const cards = busiest(status, MOST_MODELS).map(model => [model, known.get(model.model)]);
  show(id('models'), [cards, status.models.length], () => {
    const made = cards.map(([model, now]) => card(model, now));
    if (!made.length) made.push(make('p', {class: 'note'}, 'No model was brought yet.'));
    if (status.models.length > MOST_MODELS) made.push(make('p', {class: 'note'}, `And ${status.models.length - MOST_MODELS} further models: bbgrap status has them.`));
    return made;
  });
}

function card(model, now) {
  const [p50, p95, p99] = now?.quantiles_s ?? [0, 0, 0];
  const time = seconds => now?.per_s ? milliseconds(seconds) : '–';
  const facts = [
    ['answered per second', figure(now?.per_s ?? 0, now ? `${perSecond(now.per_s)} /s` : '–'), 'big'],
    ['p50', time(p50)], ['p95', time(p95)], ['p99', time(p99)],
    ['waiting', figure(model.waiting, `${model.waiting}`)], ['running', figure(model.running, `${model.running}`)],
    ...['done', 'failed', 'cancelled', 'refused'].map(how => [how, figure(model.requests[how], model.requests[how].toLocaleString('en-US'))]),
  ];
  return make('article', {class: 'card', 'data-model': model.model},
    make('h3', {title: model.model}, shorten(model.name, 60)),
    make('dl', {}, ...facts.map(([name, value, kind]) => make('div', {class: kind, 'data-fact': name}, make('dt', {}, name), make('dd', {}, value)))));
}

/** Draw the time series; a point is [time, [model, per second, p50, p95, p99, waiting, running], ...]. */
export function charts(points, status, chosen) {
  const times = points.map(point => point[0]), shown = busiest(status, COLOURS);
  const of = (model, place) => points.map(point => point.slice(1).find(entry => entry[0] === model)?.[place] ?? null);
  chart(id('chart-rate'), times, shown.map((model, place) => ({name: model.name, colour: `var(--${SERIES[place]})`, values: of(model.model, 1)})), value => `${+value.toFixed(1)}`);
  const model = status.models.find(entry => entry.model === chosen) ?? shown[0];
  id('chart-model').textContent = model ? shorten(model.name, 30) : 'no model';
  if (!model) return;
  const asked = of(model.model, 1);
  const times_ms = place => of(model.model, place).map((seconds, at) => seconds === null || !asked[at] ? null : 1e3 * seconds);
  chart(id('chart-time'), times, [['p50', 2, 'd4'], ['p95', 3, 'd6'], ['p99', 4, 'd7']].map(([name, place, colour]) =>
    ({name, colour: `var(--${colour})`, values: times_ms(place)})), value => value >= 1e3 ? `${+(value / 1e3).toFixed(1)} s` : `${value >= 10 ? Math.round(value) : +value.toPrecision(2)} ms`);
  chart(id('chart-queue'), times, [['waiting', 5, 'd7'], ['running', 6, 'd4']].map(([name, place, colour]) =>
    ({name, colour: `var(--${colour})`, values: of(model.model, place)})), value => `${+value.toFixed(1)}`, 4);
}

export function nodes(status) {
  const heads = [['node'], ['state'], ['busy', 1], ['memory used', 1], ['free', 1], ['in all', 1], ['running', 1], ['cores', 1], ['bbgrap'], ['onnxruntime'], ['since', 1]];
  const since = node => age(status.now - node.since);
  table(id('nodes'), status.nodes.map(node => [node, since(node)]), heads, () => status.nodes.map(node => {
    const gone = node.state !== 'alive', state = node.reloads ? 'loads again' : node.state;
    const cells = [named(node.name), make('span', {class: `state ${gone ? 'gone' : node.reloads ? 'between' : 'alive'}`}, state)];
    const figures = [
      [figure(node.busy, `${Math.round(100 * node.busy)} %`), bar(node.busy, 'compute')],
      figure(node.used_bytes, memory(node.used_bytes)), figure(node.free_bytes, memory(node.free_bytes)), figure(node.memory_bytes, memory(node.memory_bytes)),
      figure(node.running, `${node.running}`), figure(node.cores, `${node.cores}`),
    ];
    cells.push(...(gone ? figures.map(() => '–') : figures), node.version, node.onnxruntime, gone ? `${since(node)} ago` : since(node));
    return {'data-node': node.name, class: gone ? 'gone' : undefined, cells};
  }));
  if (!status.nodes.length) id('nodes').replaceChildren(make('caption', {}, 'No agents yet. On each machine: bbgrap-agent --join tcp://HOST:PORT'));
  const drawn = status.nodes.map(({name, state, busy}) => ({name, state, busy, colour: colourOf(name)}));
  const key = JSON.stringify([drawn, status.links]);
  if (id('map').shown !== key) map(id('map'), drawn, status.links);
  id('map').shown = key;
  table(id('links'), status.links, [['link'], ['bandwidth', 1], ['round trip', 1]], () => status.links.map(link => ({
    'data-link': `${link.source} ${link.destination}`, class: link.is_up ? undefined : 'gone',
    cells: [`${link.source} → ${link.destination}`, link.is_up ? figure(link.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s ? rate(link.bandwidth_bytes_per_s) : 'not measured') : 'down',
      link.is_up && link.round_trip_s ? figure(link.round_trip_s, milliseconds(link.round_trip_s)) : '–'],
  })));
  if (!status.links.length) id('links').replaceChildren(make('caption', {}, 'No link was measured yet: bbgrap profile, or planner auto, does that.'));
}

export function plans(status) {
  const all = status.models.flatMap(model => model.plans.map(plan => [model.name, plan]));
  const heads = [['model'], ['inputs'], ['planner'], ['serves'], ['on'], ['why'], ['lately', 1], ['predicted', 1], ['requests', 1], ['waiting, running', 1], ['weights', 1]];
  const told = all.map(([name, {segments, ...plan}]) => [name, plan]);
  table(id('plans'), told, heads, () => told.map(([name, plan]) => ({'data-plan': plan.plan, cells: [
    shorten(name, 40), make('span', {class: 'why'}, shapes(plan)), `${plan.planner} (${plan.objective})`,
    make('span', {class: `state ${plan.serves === 'plan' ? 'alive' : plan.serves === 'nobody' ? 'gone' : 'between'}`}, ['nobody', plan.variant].includes(plan.serves) ? plan.serves : `${plan.serves}: ${plan.variant}`),
    plan.nodes.flatMap(node => [...named(node), ' ']), make('span', {class: 'why'}, plan.why),
    plan.measured_s ? figure(plan.measured_s, milliseconds(plan.measured_s)) : '–', plan.predicted_s ? figure(plan.predicted_s, milliseconds(plan.predicted_s)) : '–',
    figure(plan.requests, plan.requests.toLocaleString('en-US')), [figure(plan.waiting, `${plan.waiting}`), ', ', figure(plan.running, `${plan.running}`)],
    bytes(Object.values(plan.weight_bytes).reduce((sum, size) => sum + size, 0)),
  ]})));
}

export function traffic(status, recorded) {
  const sums = new Map(status.exchanges.map(entry => [`${entry.source}\n${entry.destination}`, entry.bytes]));
  const once = new Map(recorded.map(([source, target, size]) => [`${source}\n${target}`, size]));
  const names = [...new Set([...status.nodes.map(node => node.name), ...status.exchanges.flatMap(entry => [entry.source, entry.destination])])].filter(name => name !== 'coordinator');
  names.push('coordinator');
  const most = Math.max(1, ...sums.values());
  table(id('traffic'), [names, status.exchanges, recorded], [['from \\ to'], ...names.map(name => [shorten(name, 16), 1])], () => names.map(source => ({cells: [
    source, ...names.map(target => {
      const pair = `${source}\n${target}`, size = sums.get(pair);
      if (!size) return source === target ? '' : '·';
      const cell = make('span', {class: 'heat'}, make('data', {value: size, 'data-pair': `${source} ${target}`}, bytes(size)), make('small', {}, once.has(pair) ? bytes(once.get(pair)) : ''));
      cell.style.setProperty('--heat', `${Math.round(100 * size / most)}%`);
      return cell;
    })]})));
}

export function segments(plan) {
  const found = plan?.segments ?? [], longest = Math.max(1e-9, ...found.flatMap(entry => [entry.measured_s, entry.predicted_s]));
  const both = found.filter(entry => entry.measured_s > 0 && entry.predicted_s > 0);
  const off = Math.exp(both.reduce((sum, entry) => sum + Math.abs(Math.log(entry.measured_s / entry.predicted_s)), 0) / both.length);
  id('error').textContent = both.length ? `Segments of the latest recorded request. Predictions are off by a factor of ${off.toFixed(2)} (geometric mean).`
    : 'Segments of the latest recorded request; what a standby answers has no prediction.';
  table(id('segments'), found, [['node'], ['segment', 1], [marked('compute', 'measured'), 1], [marked('wait', 'predicted'), 1], ['ratio', 1], ['']], () => found.map(entry => ({
    'data-segment': `${entry.node} ${entry.segment}`,
    cells: [named(entry.node), `${entry.segment}`, figure(entry.measured_s, milliseconds(entry.measured_s)), entry.predicted_s ? figure(entry.predicted_s, milliseconds(entry.predicted_s)) : '–',
      entry.predicted_s ? (entry.measured_s / entry.predicted_s).toFixed(2) : '–', [bar(entry.measured_s / longest, 'compute thin'), bar(entry.predicted_s / longest, 'wait thin')]],
  })));
  if (!found.length) id('segments').replaceChildren(make('caption', {}, 'No request of what serves was recorded yet.'));
}

const BAD = new Set(['lost', 'worker lost', 'link lost', 'refused', 'no plan', 'given up', 'stalled', 'differed']);

export function events(all) {
  const shown = all.slice(-100).reverse();
  table(id('events'), shown.map(event => event.number), [['time'], ['event'], ['what']], () => shown.map(event => ({'data-event': event.number, cells: [
    make('time', {datetime: new Date(1e3 * event.at).toISOString()}, new Date(1e3 * event.at).toLocaleTimeString([], {hour12: false})),
    make('span', {class: `state ${BAD.has(event.kind) ? 'gone' : 'alive'}`}, event.kind), event.text,
  ]})));
}
