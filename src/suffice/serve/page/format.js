// Numbers and elements as people read them.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value) {
  return plain.format(value);
}

const brief = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export function short(value) {
  return brief.format(value);
}

export function rate(value) {
  return value >= 100 || value === 0 ? plain.format(value) : value.toFixed(1);
}

// A share of 1 in percent, without the sign: never "0" or "100" for what is only near it.
export function percent(share) {
  const value = 100 * share;
  if (value === 0 || value === 100) return String(value);
  if (value < 0.01) return "< 0.01";
  if (value < 1) return value.toFixed(2);
  if (value < 10 || value > 99) return Math.min(value, 99.9).toFixed(1);
  return value.toFixed(0);
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  let left = value;
  while (left >= 999.5 && at < units.length - 1) {
    left /= 1000;
    at += 1;
  }
  return `${at && left < 100 ? left.toFixed(1) : left.toFixed(0)}\u00a0${units[at]}`;
}

export function duration(seconds) {
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(1)}\u00a0ms`;
  return seconds < 1 ? `${(1000 * seconds).toFixed(0)}\u00a0ms` : `${seconds.toFixed(1)}\u00a0s`;
}

// Make an element; children that are strings become text, never markup.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Make elements the children of a box; what is in its place already is not touched.
export function place(box, elements) {
  for (const child of [...box.children]) if (!elements.includes(child)) child.remove();
  elements.forEach((each, at) => {
    if (box.children[at] !== each) box.insertBefore(each, box.children[at] ?? null);
  });
}

export function byId(id) {
  return document.getElementById(id);
}
