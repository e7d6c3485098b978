// Work that is done before the browser draws.

// Return a function that calls `work` once before the next picture; `.now()` calls it at once. Work
// that takes long is done less often: the page answers to its user in between.
export function frame(work) {
  let asked = 0;
  let next = 0;
  const done = () => {
    asked = 0;
    const began = performance.now();
    work();
    const now = performance.now();
    next = now + 3 * (now - began);
  };
  const wait = () => {
    if (performance.now() < next) asked = requestAnimationFrame(wait);
    else done();
  };
  const draw = () => { asked ||= requestAnimationFrame(wait); };
  draw.now = () => {
    cancelAnimationFrame(asked);
    done();
  };
  return draw;
}
