// Shows the reply being written: Gradio hands over a ticket, and what comes of the reply is put in place here.
(() => {
  const parts = {};
  let writing = false;

  window.specchatTicks = (trigger, every) => {
    const tick = () => { if (!writing && !document.hidden) trigger("select", {}); };
    setInterval(tick, every);
    document.addEventListener("visibilitychange", tick);
  };

  // A component that the reply changes too. Its value is set by way of Gradio, which so knows what it shows.
  window.specchatPart = (name, props) => { parts[name] = props; };

  // What js_on_load has of the component that shows the reply. Its value is a ticket while a reply is written, and the
  // ticket with a full stop when that reply is over.
  window.specchatReply = (element, props, watch, trigger) => {
    let ticket = "", source = null, body = null, settled = 0, asking = 0;

    function close() {
      if (source) source.close();
      clearInterval(asking);
      source = null;
      writing = false;
    }

    // Nothing more comes of it: the server is asked to show what there is, until it has.
    function over() {
      close();
      trigger("select", {});
      asking = setInterval(() => trigger("select", {}), 1000);
    }

    // `settled` nodes stay as they are; the tail behind them is written anew each time.
    function write(text) {
      if (text.opening) {
        element.innerHTML = text.opening;
        body = element.querySelector(".sc-writing");
        settled = 0;
      }
      while (body.childNodes.length > settled) body.lastChild.remove();
      body.insertAdjacentHTML("beforeend", text.more);
      settled = body.childNodes.length;
      body.insertAdjacentHTML("beforeend", text.tail);
      writing = body.hasChildNodes();
    }

    watch("value", () => {
      const ended = props.value.endsWith(".");
      if (ended && props.value !== `${ticket}.`) return;
      close();
      element.textContent = "";
      if (ended) return;
      ticket = props.value;
      source = new EventSource(`specchat/reply?ticket=${encodeURIComponent(ticket)}`);
      source.onmessage = (event) => {
        const { text, ...others } = JSON.parse(event.data);
        if (text) write(text);
        for (const name in others) parts[name].value = others[name];
      };
      source.addEventListener("end", over);
      source.onerror = over;
    });
  };
})();
