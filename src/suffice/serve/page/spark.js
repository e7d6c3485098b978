// A small curve of the last minute, with its last value.

import { element } from "./format.js";
import { fitted } from "./heat.js";

const POINTS = 240;  // a minute of frames

export class Spark {
  constructor(title, write) {
    this.write = write;
    this.value = element("p", {}, "–");
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.box = element("div", { class: "spark" }, element("h3", {}, title), this.value, this.canvas);
    this.points = [];  // [value, top] or null where there is none
  }

  // Add a value, with the largest of those that it stands for; null if there is none.
  add(value, top = value) {
    this.points.push(value === null ? null : [value, top]);
    if (this.points.length > POINTS) this.points.shift();
    const last = this.points.findLast((point) => point !== null);
    if (last) this.value.replaceChildren(...this.write(...last));
    this.draw();
  }

  draw() {
    const { context, width, height } = fitted(this.canvas);
    const known = this.points.filter((point) => point !== null);
    if (!known.length) return;
    const style = getComputedStyle(this.canvas);
    const most = Math.max(...known.map(([, top]) => top), 1e-9);
    const x = (at) => width - ((this.points.length - 1 - at) * width) / (POINTS - 1);
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
    context.arc(Math.min(x(at), this.canvas.clientWidth - 3), y(this.points[at][0]), 2.5, 0, 7);
    context.fill();
  }
}
