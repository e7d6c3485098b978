// A map of shares, a column per layer and a row per key/value head.

const RAMPS = {
  light: ["#e9e7df", "#a9dccb", "#37a78f", "#0b6e69", "#083443"],
  dark: ["#1c242d", "#12474d", "#138a7d", "#4fce9f", "#ecf78f"],
};
const LABELS = 16;  // pixels under the map
const MOST = 132;  // pixels of its height

function theme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// The colour of a share. Its root is its place on the ramp: small shares are to be told apart.
function colour(share, ramp) {
  const at = Math.sqrt(Math.min(Math.max(share, 0), 1)) * (ramp.length - 1);
  const low = Math.min(Math.floor(at), ramp.length - 2);
  const mix = (from) => {
    const [a, b] = [ramp[low], ramp[low + 1]].map((hex) => parseInt(hex.slice(from, from + 2), 16));
    return Math.round(a + (b - a) * (at - low));
  };
  return `rgb(${mix(1)} ${mix(3)} ${mix(5)})`;
}

// Fit a canvas to the pixels of its box; return its context, in units of CSS.
export function fitted(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (height) canvas.style.height = `${height}px`;
  const tall = height ?? canvas.clientHeight;
  const [w, h] = [Math.round(width * ratio), Math.round(tall * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, tall);
  return { context, width, height: tall };
}

export class Heat {
  // `chosen` is called with the layer and head that the user points at, or with nothing.
  constructor(canvas, chosen) {
    this.canvas = canvas;
    this.chosen = chosen;
    this.shares = [];  // [L][G]
    this.drawn = [];
    this.cell = null;
    this.moving = 0;
    canvas.addEventListener("pointermove", (event) => this.point(this.under(event)));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("blur", () => this.point(null));
    canvas.addEventListener("keydown", (event) => this.move(event));
  }

  get grid() {
    const [layers, heads] = [this.shares.length, this.shares[0]?.length ?? 0];
    const width = this.canvas.clientWidth / layers;
    return { layers, heads, width, height: Math.min(Math.max(width, 8), 16, MOST / heads) };
  }

  under(event) {
    const { layers, heads, width, height } = this.grid;
    const layer = Math.floor(event.offsetX / width);
    const head = Math.floor(event.offsetY / height);
    return layer < layers && head < heads && layer >= 0 && head >= 0 ? [layer, head] : null;
  }

  move(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (!step || !this.shares.length) return;
    event.preventDefault();
    const { layers, heads } = this.grid;
    const [layer, head] = this.cell ?? [0, 0];
    const by = this.cell ? step : [0, 0];
    const within = (value, most) => Math.min(Math.max(value, 0), most - 1);
    this.point([within(layer + by[0], layers), within(head + by[1], heads)], true);
  }

  point(cell, aloud = false) {
    this.cell = cell;
    this.chosen(cell, aloud);
    this.draw();
  }

  // Show shares; the colours move there within a few pictures.
  show(shares) {
    this.shares = shares;
    const same = this.drawn.length === shares.length && this.drawn[0]?.length === shares[0]?.length;
    if (!same || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.drawn = shares.map((row) => [...row]);
    }
    if (!this.moving) this.glide();
  }

  glide() {
    let far = 0;
    this.drawn.forEach((row, layer) => row.forEach((value, head) => {
      const way = this.shares[layer][head] - value;
      far = Math.max(far, Math.abs(way));
      row[head] = Math.abs(way) < 0.004 ? this.shares[layer][head] : value + 0.3 * way;
    }));
    this.draw();
    this.moving = far > 0.004 ? requestAnimationFrame(() => this.glide()) : 0;
  }

  draw() {
    const { layers, heads, width, height } = this.grid;
    if (!layers) return;
    const { context } = fitted(this.canvas, Math.ceil(heads * height) + LABELS);
    const gap = width >= 5 ? 1.5 : width >= 3 ? 0.5 : 0;
    const ramp = RAMPS[theme()];
    this.drawn.forEach((row, layer) => row.forEach((share, head) => {
      context.fillStyle = colour(share, ramp);
      context.beginPath();
      context.roundRect(layer * width, head * height, width - gap, height - Math.min(gap, 1.5), 2);
      context.fill();
    }));
    const ink = getComputedStyle(this.canvas).color;
    this.label(context, ink, { layers, width, top: heads * height });
    if (!this.cell) return;
    const [layer, head] = this.cell;
    context.strokeStyle = getComputedStyle(document.body).color;
    context.lineWidth = 1.5;
    context.strokeRect(layer * width - 0.5, head * height - 0.5, width - gap + 1, height - gap + 1);
  }

  label(context, ink, { layers, width, top }) {
    context.fillStyle = ink;
    context.font = "10px system-ui, sans-serif";
    context.textBaseline = "top";
    const every = [1, 2, 5, 10, 20, 50].find((step) => step * width >= 26) ?? 100;
    for (let layer = 0; layer < layers; layer += every) {
      context.textAlign = "center";
      context.fillText(String(layer), (layer + 0.5) * width, top + 4);
    }
  }
}

// Draw the ramp of colours; a quarter is in its middle.
export function legend(canvas) {
  const { context, width, height } = fitted(canvas);
  const ramp = RAMPS[theme()];
  for (let x = 0; x < width; x += 1) {
    context.fillStyle = colour((x / (width - 1)) ** 2, ramp);
    context.fillRect(x, 0, 1.5, height);
  }
}
