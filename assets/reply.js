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

  // What js_on_load has of the component that shows the reply: its value is the ticket, "" when nothing is written.
  window.specchatReply = (element, props, watch, trigger) => {
    let source = null, body = null, settled = 0, asking = 0;

    function close() {
      if (source) source.close();
      clearInterval(asking);
      source = null;
      writing = false;
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
      close();
      element.textContent = "";
      if (!props.value) return;
      source = new EventSource(`specchat/reply?ticket=${encodeURIComponent(props.value)}`);
      source.onmessage = (event) => {
        const { text, ...others } = JSON.parse(event.data);
        if (text) write(text);
        for (const name in others) parts[name].value = others[name];
      };
      source.addEventListener("end", () => { close(); trigger("select", {}); });
      // A connection that breaks ends the reply. The server may notice later: asked until it takes the ticket back.
      source.onerror = () => { close(); asking = setInterval(() => trigger("select", {}), 1000); };
    });
  };
})();
