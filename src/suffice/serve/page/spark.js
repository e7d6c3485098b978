// A small curve of the last minute, with its last value.

import { element } from "./format.js";
import { fitted } from "./heat.js";

const POINTS = 240;  // a minute of frames

export class Spark {
  // `least` points share the width while there are fewer.
  constructor(title, write, least = 40) {
    this.write = write;
    this.least = least;
    this.value = element("p", {}, "–");
    this.more = element("p", { class: "more" }, "\u00a0");
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.box = element("div", { class: "spark" }, element("h3", {}, title), this.value, this.canvas, this.more);
    this.points = [];  // [value, top] or null where there is none
  }

  // Add a value, with the largest of those that it stands for; null if there is none. `more` is
  // a line under the curve.
  add(value, top = value, more = null) {
    this.points.push(value === null ? null : [value, top]);
    if (this.points.length > POINTS) this.points.shift();
    const last = this.points.findLast((point) => point !== null);
    if (last) this.value.textContent = this.write(last[0]);
    if (more !== null) this.more.textContent = more;
    this.draw();
  }

  draw() {
    const { context, width, height } = fitted(this.canvas);
    const known = this.points.filter((point) => point !== null);
    if (!known.length) return;
    const style = getComputedStyle(this.canvas);
    const most = Math.max(...known.map(([, top]) => top), 1e-9);
    const shown = Math.max(this.points.length, this.least);
    const x = (at) => width - 3 - ((this.points.length - 1 - at) * (width - 3)) / (shown - 1);
    const y = (value) => height - 1.5 - (value / most) * (height - 4);
    const run = (which) => {
      context.beginPath();
      let open = false;
      this.points.forEach((point, at) => {
        if (point === null) {
          open = false;
          return;
        }
        if (open) context.lineTo(x(at), y(point[which]));
        else context.moveTo(x(at), y(point[which]));
        open = true;
      });
    };
    context.lineJoin = "round";
    context.strokeStyle = style.getPropertyValue("color");
    context.globalAlpha = 0.45;
    context.lineWidth = 1;
    run(1);
    context.stroke();
    context.globalAlpha = 1;
    context.strokeStyle = style.getPropertyValue("accent-color");
    context.lineWidth = 1.75;
    run(0);
    context.stroke();
    this.dot(context, style, x, y);
  }

  dot(context, style, x, y) {
    const at = this.points.findLastIndex((point) => point !== null);
    context.fillStyle = style.getPropertyValue("accent-color");
    context.beginPath();
    context.arc(x(at), y(this.points[at][0]), 2.5, 0, 7);
    context.fill();
  }
}
