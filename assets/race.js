// The replay of a race: static, loaded once, holds no text. The server writes every lane's text as escaped spans,
// one a round, each with the time at which it came; this script only hides those that have not come yet.
(() => {
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  class Replay {
    constructor(root) {
      this.root = root;
      this.end = Number(root.dataset.end);
      this.lanes = [...root.querySelectorAll(".sc-race-lane")].map(readLane);
      this.time = this.end;
      this.frame = 0;
      const part = (name) => root.querySelector(`[data-race="${name}"]`);
      this.play = part("play");
      this.seek = part("seek");
      this.speed = part("speed");
      this.clock = part("clock");
      this.play.addEventListener("click", () => this.press());
      part("restart").addEventListener("click", () => this.start(0));
      part("skip").addEventListener("click", () => this.finish(true));
      this.seek.addEventListener("input", () => {
        this.stop();
        this.show(this.end * Number(this.seek.value) / 1000);
      });
      part("controls").hidden = false;
      if (calm.matches) return this.finish(true);
      // What else has come with the board must have its place first.
      setTimeout(() => root.scrollIntoView({ behavior: "smooth", block: "nearest" }), 200);
      this.start(0);
    }

    press() {
      if (this.frame) this.stop();
      else this.start(this.time < this.end ? this.time : 0);
    }

    start(time) {
      this.stop();
      this.show(time);
      let before = performance.now();
      const step = (now) => {
        // The board has been replaced by another one.
        if (!this.root.isConnected) return;
        // A tab that was in the background goes on from where it was.
        this.show(this.time + Math.min(now - before, 250) / 1000 * Number(this.speed.value));
        before = now;
        if (this.time >= this.end) this.finish();
        else this.frame = requestAnimationFrame(step);
      };
      this.frame = requestAnimationFrame(step);
      this.play.textContent = "Pause";
    }

    stop() {
      cancelAnimationFrame(this.frame);
      this.frame = 0;
      this.play.textContent = "Play";
    }

    // fromTop: nobody has read along, so the texts are shown from their beginning.
    finish(fromTop = false) {
      this.stop();
      this.show(this.end);
      if (fromTop) for (const lane of this.lanes) lane.text.scrollTop = 0;
    }

    show(time) {
      this.time = Math.min(time, this.end);
      this.root.classList.toggle("sc-race-over", this.time >= this.end);
      this.seek.value = String(this.end > 0 ? Math.round(this.time / this.end * 1000) : 1000);
      this.clock.textContent = `${this.time.toFixed(1)} s of ${this.end.toFixed(1)} s`;
      for (const lane of this.lanes) showLane(lane, this.time);
    }
  }

  function readLane(root) {
    let tokens = 0;
    const beats = [...root.querySelectorAll("[data-at]")].map((node) => {
      tokens += Number(node.dataset.n);
      return { node, at: Number(node.dataset.at), tokens };
    });
    const part = (name) => root.querySelector(`[data-lane="${name}"]`);
    return {
      beats, tokens, shown: beats.length, total: Number(root.dataset.seconds), mean: part("speed").textContent, ended: part("count").textContent,
      speed: part("speed"), count: part("count"), bar: part("bar"), text: root.querySelector(".sc-race-text"),
    };
  }

  function showLane(lane, time) {
    let shown = lane.shown;
    while (shown < lane.beats.length && lane.beats[shown].at <= time) lane.beats[shown++].node.hidden = false;
    while (shown > 0 && lane.beats[shown - 1].at > time) lane.beats[--shown].node.hidden = true;
    const moved = shown !== lane.shown;
    lane.shown = shown;
    const over = shown === lane.beats.length && time >= lane.total;
    const tokens = shown ? lane.beats[shown - 1].tokens : 0;
    if (over) {
      lane.speed.textContent = lane.mean;
      lane.count.textContent = lane.ended;
    } else {
      const first = lane.beats[0];
      const after = shown > 1 ? time - first.at : 0;
      lane.speed.textContent = after > 0 ? ((tokens - first.tokens) / after).toFixed(1) : "–";
      lane.count.textContent = shown ? `${tokens} tokens` : "reading the prompt";
    }
    lane.bar.style.width = `${lane.tokens ? tokens / lane.tokens * 100 : 0}%`;
    if (moved) follow(lane.text, shown ? lane.beats[shown - 1].node : null);
  }

  // Text that has not come yet keeps its place, so nothing jumps; only what is out of sight is scrolled to.
  function follow(text, node) {
    const below = node ? node.offsetTop + node.offsetHeight + 14 - text.clientHeight : 0;
    if (!node) text.scrollTop = 0;
    else if (below > text.scrollTop) text.scrollTop = below;
    else if (node.offsetTop < text.scrollTop) text.scrollTop = node.offsetTop;
  }

  function reveal(root, lane) {
    for (const flag of root.querySelectorAll("[data-parts]")) {
      if (flag.dataset.parts !== lane) continue;
      const text = flag.closest(".sc-race-text");
      text.scrollTop = flag.offsetTop - text.clientHeight / 3;
      text.scrollIntoView({ block: "nearest" });
    }
  }

  // Gradio calls this once for the board (see RaceTab); what stands on it comes and goes.
  window.specchatRace = (element) => {
    let replay = null;
    const look = () => {
      const root = element.querySelector(".sc-race-replay:not(.sc-race-ready)");
      if (!root) return;
      root.classList.add("sc-race-ready");
      replay = new Replay(root);
    };
    element.addEventListener("click", (event) => {
      const button = event.target.closest("[data-reveal]");
      if (!button) return;
      if (replay) replay.finish(true);
      reveal(element, button.dataset.reveal);
    });
    new MutationObserver(look).observe(element, { childList: true, subtree: true });
    look();
  };
})();
