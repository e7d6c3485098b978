// Work that is done before the browser draws.

// Return a function that calls `work` once before the next picture. Work that takes long is done
// less often: the page answers to its user in between.
export function frame(work) {
  let asked = 0;
  let next = 0;
  const turn = (began) => {
    if (began < next) {
      asked = requestAnimationFrame(turn);
      return;
    }
    asked = 0;
    work();
    const now = performance.now();
    next = now + 3 * (now - began);
  };
  return () => { asked ||= requestAnimationFrame(turn); };
}
