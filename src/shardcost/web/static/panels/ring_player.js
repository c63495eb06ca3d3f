// Stepping through a schedule: which step is done, whether one is on its way, whether it plays on.

const STEP_MS = 1100;
const REST_MS = 350;

/**
 * Return a player. `draw()` is called when its state has changed, `progress(t)` while a step is on
 * its way; `pace()` is how many times faster than usual. Where less motion is wanted, steps are
 * done at once.
 */
export function player({ draw, progress, pace }) {
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const state = { at: 0, steps: 0, moving: false, playing: false };
  let frame = 0;
  let timer = 0;

  function stop() {
    state.playing = false;
    state.moving = false;
    cancelAnimationFrame(frame);
    clearTimeout(timer);
  }

  function go(step) {
    stop();
    state.at = Math.max(0, Math.min(state.steps, step));
    draw();
  }

  /** Show one step on its way, then done. */
  function advance(then) {
    if (still.matches) {
      state.at += 1;
      draw();
      then();
      return;
    }
    state.moving = true;
    draw();
    let start = null;
    const tick = (now) => {
      start ??= now;
      const t = Math.min(1, ((now - start) * pace()) / STEP_MS);
      progress(t * t * (3 - 2 * t));
      if (t < 1) {
        frame = requestAnimationFrame(tick);
        return;
      }
      state.moving = false;
      state.at += 1;
      draw();
      then();
    };
    frame = requestAnimationFrame(tick);
  }

  function run() {
    if (state.at >= state.steps) {
      stop();
      draw();
      return;
    }
    advance(() => {
      if (state.playing) timer = setTimeout(run, (still.matches ? STEP_MS : REST_MS) / pace());
    });
  }

  return {
    state,
    stop,
    go,
    load(steps) {
      state.steps = steps;
      go(0);
    },
    back: () => go(state.moving ? state.at : state.at - 1),
    on() {
      const at = state.at + Number(state.moving);
      stop();
      state.at = at; // a step on its way is finished, and the next one begins
      if (at < state.steps) advance(() => {});
      else draw();
    },
    toggle() {
      if (state.playing) {
        stop();
        draw();
        return;
      }
      if (state.at >= state.steps) state.at = 0;
      state.playing = true;
      run();
    },
  };
}
