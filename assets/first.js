// Runs before everything else of the page: static, loaded once, holds no text of any conversation.
// Gradio's loading page leaves its clock and its logo running when it goes: each asks for a frame sixty times a second,
// for ever, unseen, and every frame is made on a core that a reply needs. So whatever of Gradio's asks for frames
// longer than any real animation does gets one a second.
(() => {
  const LONGEST_MS = 3000, PAUSE_MS = 1000;
  const next = window.requestAnimationFrame.bind(window);
  let began = 0, last = -Infinity;
  window.requestAnimationFrame = (draw) => {
    const asks = (new Error().stack || "").split("\n").slice(1, 3);
    if (!asks.some((line) => line.includes("/assets/"))) return next(draw);
    const now = performance.now();
    if (now - last > 2 * PAUSE_MS) began = now;
    last = now;
    if (now - began < LONGEST_MS) return next(draw);
    setTimeout(() => next(draw), PAUSE_MS);
    return 0;
  };
})();
