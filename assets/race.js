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
      [this.button, this.seek, this.speed, this.clock] = ["play", "seek", "speed", "clock"].map(part);
      part("controls").hidden = false;
      if (calm.matches) return this.finish(true);
      // What else has come with the board must have its place first.
      setTimeout(() => root.scrollIntoView({ behavior: "smooth", block: "nearest" }), 200);
      this.start(0);
    }

    press(name) {
      if (name === "restart") this.start(0);
      else if (name === "skip") this.finish(true);
      else if (name === "play" && this.frame) this.stop();
      else if (name === "play") this.start(this.time < this.end ? this.time : 0);
    }

    sought() {
      this.stop();
      this.show(this.end * Number(this.seek.value) / 1000);
    }

    start(time) {
      this.stop();
      this.show(time);
      let before = performance.now();
      const step = (now) => {
        // A tab that was in the background goes on from where it was.
        this.show(this.time + Math.min(Math.max(0, now - before), 250) / 1000 * Number(this.speed.value));
        before = now;
        if (this.time >= this.end) this.finish();
        else this.frame = requestAnimationFrame(step);
      };
      this.frame = requestAnimationFrame(step);
      this.button.textContent = "Pause";
    }

    stop() {
      cancelAnimationFrame(this.frame);
      this.frame = 0;
      this.button.textContent = "Play";
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
    const [speed, count, bar] = ["speed", "count", "bar"].map(part);
    return {
      beats, tokens, speed, count, bar, text: root.querySelector(".sc-race-text"), shown: beats.length,
      total: Number(root.dataset.seconds), mean: speed.textContent, ended: count.textContent,
    };
  }

  function showLane(lane, time) {
    let shown = lane.shown;
    while (shown < lane.beats.length && lane.beats[shown].at <= time) lane.beats[shown++].node.hidden = false;
    while (shown > 0 && lane.beats[shown - 1].at > time) lane.beats[--shown].node.hidden = true;
    const moved = shown !== lane.shown;
    lane.shown = shown;
    const tokens = shown ? lane.beats[shown - 1].tokens : 0;
    if (shown === lane.beats.length && time >= lane.total) {
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

  // Gradio calls this once for the board (see RaceTab). It changes a board into the next one node by node and takes
  // away attributes that the new one lacks: a replay without data-ready has just come, even where its nodes stayed.
  window.specchatRace = (element) => {
    let replay = null;
    const look = () => {
      const root = element.querySelector(".sc-race-replay");
      if (root && root.hasAttribute("data-ready")) return;
      if (replay) cancelAnimationFrame(replay.frame);
      replay = null;
      if (!root) return;
      root.setAttribute("data-ready", "");
      replay = new Replay(root);
    };
    element.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button || !replay) return;
      if (button.dataset.race) replay.press(button.dataset.race);
      if (button.dataset.reveal) {
        replay.finish(true);
        reveal(element, button.dataset.reveal);
      }
    });
    element.addEventListener("input", (event) => {
      if (replay && event.target.dataset.race === "seek") replay.sought();
    });
    const changes = { childList: true, subtree: true, attributes: true, attributeFilter: ["data-ready"] };
    new MutationObserver(look).observe(element, changes);
    look();
  };
})();
