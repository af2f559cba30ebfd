// Text, elements, charts and the map. Names come from models and from the network: they become text nodes and attributes, never markup.

const SVG = 'http://www.w3.org/2000/svg';

/** Make an element; children are elements or text. */
export function make(name, attributes = {}, ...children) {
  return fit(document.createElement(name), attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return fit(document.createElementNS(SVG, name), attributes, children);
}

function fit(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Replace what an element holds if it is to show something else than before. */
export function show(element, key, build) {
  const text = JSON.stringify(key);
  if (element.shown === text) return;
  element.shown = text;
  element.replaceChildren(...[build()].flat());
}

/** A figure as it is told, and as it is read. */
export function figure(value, text) {
  return make('data', {value}, text);
}

const grouped = (value, digits) => value.toLocaleString('en-US', {minimumFractionDigits: digits, maximumFractionDigits: digits});

export function milliseconds(seconds) {
  if (!seconds) return '0 ms';
  const ms = 1e3 * seconds, size = Math.abs(ms);
  return `${grouped(ms, size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3)} ms`;
}

export function bytes(count) {
  const units = [['TB', 1e12], ['GB', 1e9], ['MB', 1e6], ['KB', 1e3]];
  const [unit, size] = units.find(([, least]) => count >= least) ?? ['B', 1];
  return `${size === 1 ? count : grouped(count / size, 1)} ${unit}`;
}

export const memory = count => `${grouped(count / 2 ** 30, 1)} GiB`;
export const rate = bytesPerSecond => {
  const megabits = bytesPerSecond * 8 / 1e6;
  return megabits >= 1e4 ? `${grouped(megabits / 1e3, 0)} Gbit/s` : megabits >= 1e3 ? `${grouped(megabits / 1e3, 1)} Gbit/s` : `${grouped(megabits, 0)} Mbit/s`;
};
export const perSecond = value => grouped(value, value >= 100 ? 0 : 1);

export function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds)), days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

export function shorten(name, length) {
  if (name.length <= length) return name;
  const head = (length - 1) >> 1;
  return `${name.slice(0, head)}…${name.slice(name.length - (length - 1 - head))}`;
}

export function shapes(plan) {
  const told = Object.entries(plan.shapes).map(([name, shape]) => `${name} ${shape.join('×')}`.trim());
  return [...told.slice(0, 4), ...(told.length > 4 ? [`${told.length - 4} more inputs`] : [])].join(', ') || 'no inputs';
}

/** Fill a table: heads are [text or elements, is a number]; a row is its cells, the first of which names it. */
export function table(element, key, heads, rows) {
  show(element, key, () => [
    make('thead', {}, make('tr', {}, ...heads.map(([text, isNumber]) => make('th', {scope: 'col', class: isNumber ? 'n' : undefined}, ...[text].flat())))),
    make('tbody', {}, ...rows().map(({cells, ...attributes}) => make('tr', attributes, ...cells.map((cell, place) =>
      make(place ? 'td' : 'th', {scope: place ? undefined : 'row', class: heads[place][1] ? 'n' : undefined}, ...[cell].flat()))))),
  ]);
}

/** A part of a whole as a bar. */
export function bar(part, kind) {
  const inner = make('span', {class: kind});
  inner.style.width = `${Math.min(100, Math.max(0, 100 * part)).toFixed(1)}%`;
  return make('span', {class: 'meter', 'aria-hidden': 'true'}, inner);
}

/** Draw time series: lines are {name, colour, values}, of which null is a gap; times are in seconds. */
export function chart(element, times, lines, told, least = 1) {
  const width = 360, height = 132, left = 52, bottom = 112, top = 8;
  const end = times.at(-1) ?? 0, span = Math.min(300, Math.max(60, Math.ceil((end - (times[0] ?? end)) / 60) * 60));
  const most = Math.max(least, ...lines.flatMap(line => line.values.filter(value => value !== null)));
  const step = tick(most), high = Math.ceil(most / step - 1e-9) * step;
  const x = time => width - 6 - (width - left - 6) * (end - time) / span, y = value => bottom - (bottom - top) * value / high;
  const body = [];
  for (let value = 0; value <= high * 1.001; value += step) {
    body.push(draw('line', {x1: left, x2: width - 6, y1: y(value), y2: y(value), class: 'grid'}));
    body.push(draw('text', {x: left - 6, y: y(value) + 4, 'text-anchor': 'end', class: 'soft'}, told(value)));
  }
  for (const back of [span, span * 2 / 3, span / 3, 0]) {
    const text = back ? `−${back} s` : 'now';
    body.push(draw('text', {x: x(end - back), y: height - 4, 'text-anchor': back === span ? 'start' : back ? 'middle' : 'end', class: 'soft'}, text));
  }
  for (const {colour, values} of lines) {
    let path = '', before = null;
    values.forEach((value, place) => {
      const time = times[place];
      if (value !== null && end - time <= span) path += `${before === null || time - before > 5 ? 'M' : 'L'}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
      before = value === null ? null : time;
    });
    const line = draw('path', {d: path || 'M0 0', class: 'series'});
    line.style.stroke = colour;
    body.push(line);
  }
  // What a screen reader says of it.
  const latest = lines.map(({name, values}) => `${name} ${values.at(-1) == null ? 'none' : told(values.at(-1))}`).join(', ');
  const keys = lines.map(({name, colour}) => {
    const dot = make('span', {class: 'dot'});
    dot.style.background = colour;
    return make('span', {class: 'key'}, dot, shorten(name, 24));
  });
  element.replaceChildren(
    draw('svg', {class: 'bbgrap', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `The last ${span} seconds. Now: ${latest}`}, ...body),
    make('div', {class: 'keys'}, ...keys));
}

function tick(most) {
  const power = 10 ** Math.floor(Math.log10(most / 3));
  return [1, 2, 5, 10].map(step => step * power).find(step => most / step <= 4);
}

/** Draw nodes around the coordinator; nodes are {name, state, busy, colour}, links {source, destination, bandwidth_bytes_per_s, round_trip_s, is_up}. */
export function map(element, nodes, links) {
  const width = 440, height = nodes.length < 3 ? 270 : 330, middle = [width / 2, height / 2 - 8], few = nodes.length <= 4;
  const places = new Map([['coordinator', middle]]);
  nodes.forEach(({name}, place) => {
    const angle = Math.PI * (2 * place / nodes.length - (nodes.length === 2 ? 1 : 0.5));
    places.set(name, [middle[0] + 150 * Math.cos(angle), nodes.length < 3 ? height - 56 : middle[1] + 118 * Math.sin(angle)]);
  });
  if (nodes.length < 3) places.set('coordinator', [middle[0], 36]);
  const pairs = new Map(), names = nodes.filter(node => node.state === 'alive').map(node => node.name);
  // Every node talks to the coordinator; to each other they do as plans need it.
  for (const name of names) pairs.set(JSON.stringify([name, 'coordinator'].sort()), {source: name, destination: 'coordinator', bandwidth_bytes_per_s: 0, is_up: true});
  for (const link of links) {
    const key = JSON.stringify([link.source, link.destination].sort()), known = pairs.get(key);
    if (!known?.bandwidth_bytes_per_s || !link.is_up || link.bandwidth_bytes_per_s < known.bandwidth_bytes_per_s) pairs.set(key, link);
  }
  const lines = [], labels = [];
  for (const link of pairs.values()) {
    const [from, to] = [places.get(link.source), places.get(link.destination)];
    if (!from || !to) continue;
    const told = link.is_up ? (link.bandwidth_bytes_per_s ? `${rate(link.bandwidth_bytes_per_s)} · ${milliseconds(link.round_trip_s)}` : 'not measured') : 'down';
    const title = draw('title', {}, `${link.source} – ${link.destination}: ${told}`);
    const thick = Math.max(1, Math.min(7, Math.log10(Math.max(link.bandwidth_bytes_per_s, 1) / 1e5) * 1.5));
    lines.push(draw('line', {x1: from[0], y1: from[1], x2: to[0], y2: to[1], class: link.is_up ? 'link' : 'link down', 'stroke-width': thick}, title));
    if ((few && link.bandwidth_bytes_per_s) || !link.is_up) {
      const text = draw('text', {x: (from[0] + to[0]) / 2, y: (from[1] + to[1]) / 2 + 4, 'text-anchor': 'middle', class: 'soft halo'}, told);
      labels.push(text);
    }
  }
  const marks = [];
  for (const {name, state, busy, colour} of [...nodes, {name: 'coordinator', state: '', busy: 0}]) {
    const [x, y] = places.get(name), gone = state && state !== 'alive';
    const around = 2 * Math.PI * 24, arc = draw('circle', {cx: x, cy: y, r: 24, class: 'load', 'stroke-dasharray': `${around * busy} ${around}`, transform: `rotate(-90 ${x} ${y})`});
    arc.style.stroke = colour ?? 'none';
    const disc = draw('circle', {cx: x, cy: y, r: 18, class: gone ? 'disc gone' : 'disc'});
    if (!gone) disc.style.fill = colour ?? 'var(--soft)';
    const inner = !state ? 'C' : gone ? '×' : `${Math.round(100 * busy)}%`;
    marks.push(draw('g', {}, draw('title', {}, state ? `${name}: ${state}, computes ${Math.round(100 * busy)} % of the time` : 'the coordinator'),
      draw('circle', {cx: x, cy: y, r: 24, class: 'ring'}), arc, disc,
      draw('text', {x, y: y + 4, 'text-anchor': 'middle', class: 'inside'}, inner),
      draw('text', {x, y: y + 42, 'text-anchor': 'middle', class: 'halo'}, shorten(name, 18) + (gone ? ` (${state})` : ''))));
  }
  const alive = nodes.filter(node => node.state === 'alive').length;
  element.replaceChildren(draw('svg', {class: 'bbgrap', viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `Map: coordinator and ${nodes.length} nodes, ${alive} alive; the tables beside it have the figures`}, ...lines, ...labels, ...marks));
}
