// Runs before everything else of the page: static, loaded once, holds no text of any conversation.
// Gradio's loading page leaves its clock and its logo running when it goes: each asks for a frame sixty times a second,
// for ever, unseen, and every frame is made on a core that a reply needs. So a place in Gradio's scripts that asks for
// frames longer than a real animation does gets one a second from then on. (Its springs and tweens share one place.)
(() => {
  const LONGEST_MS = 3000, PAUSE_MS = 1000;
  const next = window.requestAnimationFrame.bind(window), cancel = window.cancelAnimationFrame.bind(window);
  const places = new Map(), waiting = new Map();
  let last = 0;
  window.requestAnimationFrame = (draw) => {
    const frames = (new Error().stack || "").split("\n").filter((line) => /:\d+:\d+/.test(line));
    // The first is this function.
    const place = frames[1] || "";
    if (!place.includes("/assets/")) return next(draw);
    const now = performance.now(), seen = places.get(place);
    const began = seen && now - seen.last < 2 * PAUSE_MS ? seen.began : now;
    places.set(place, {began, last: now});
    if (now - began < LONGEST_MS) return next(draw);
    // The browser's own are positive.
    const id = --last;
    waiting.set(id, setTimeout(() => { waiting.delete(id); next(draw); }, PAUSE_MS));
    return id;
  };
  window.cancelAnimationFrame = (id) => {
    if (!waiting.has(id)) return cancel(id);
    clearTimeout(waiting.get(id));
    waiting.delete(id);
  };
})();
