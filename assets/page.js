// The page's own script: static, loaded once, holds no text of any conversation.
// Follows the reply, copies code, names the token under the pointer, closes the sidebar on narrow screens.
(() => {
  const NARROW = 1100;

  function followReply() {
    const log = document.getElementById("sc-log");
    if (!log) return void setTimeout(followReply, 50);
    let stick = true, top = 0, height = 0;
    log.addEventListener("scroll", () => {
      // Only a reader moves up in a text that has not become shorter.
      const up = log.scrollTop < top && log.scrollHeight >= height;
      if (log.scrollHeight - log.scrollTop - log.clientHeight < 48) stick = true;
      else if (up) stick = false;
      top = log.scrollTop;
      height = log.scrollHeight;
    }, { passive: true });
    const follow = () => { if (stick) log.scrollTop = log.scrollHeight; };
    new MutationObserver(follow).observe(log, { childList: true, subtree: true, characterData: true });
    log.setAttribute("tabindex", "0");
    log.setAttribute("role", "log");
    log.setAttribute("aria-label", "Conversation");
    log.setAttribute("aria-live", "off");
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.closest && event.target.closest("#sc-box")) stick = true;
    }, true);
  }

  function settleSidebar() {
    const button = document.querySelector("#sc-settings .toggle-button");
    if (!button) return void setTimeout(settleSidebar, 50);
    const sidebar = button.closest(".sidebar");
    const tell = () => button.setAttribute("aria-expanded", String(sidebar.classList.contains("open")));
    button.setAttribute("aria-label", "Settings");
    new MutationObserver(tell).observe(sidebar, { attributes: true, attributeFilter: ["class"] });
    if (window.innerWidth < NARROW && sidebar.classList.contains("open")) button.click();
    tell();
    setTimeout(() => document.documentElement.classList.add("sc-settled"), 50);
  }

  async function copyCode(button) {
    const code = button.closest(".sc-code").querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  function nameToken(target) {
    const line = document.querySelector(".sc-legend-line");
    if (!line) return;
    const token = target.closest && target.closest(".sc-lens .sc-t");
    line.querySelector(".sc-detail").textContent = token ? `“${token.textContent}” ${token.title}` : "";
    line.classList.toggle("sc-on", Boolean(token));
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("[data-copy]");
    if (button) copyCode(button);
    if (event.target.closest && event.target.closest('[data-act="edit"], #sc-edit-last, #sc-undo')) {
      const box = document.querySelector("#sc-box textarea");
      setTimeout(() => {
        // Whoever is typing already is left alone.
        if (document.activeElement === box) return;
        box.focus();
        box.setSelectionRange(box.value.length, box.value.length);
      }, 300);
    }
    nameToken(event.target);
  });
  document.addEventListener("mouseover", (event) => nameToken(event.target));
  document.addEventListener("focusin", (event) => nameToken(event.target));
  document.addEventListener("keydown", (event) => {
    const token = event.target.closest && event.target.closest(".sc-t");
    const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    if (token && step && token[step]) {
      token[step].tabIndex = -1;
      token[step].focus();
      event.preventDefault();
    }
    if (event.key === "Escape") {
      const stop = document.querySelector("#sc-box button.stop-button");
      if (stop) stop.click();
    }
  });

  followReply();
  settleSidebar();
})();
