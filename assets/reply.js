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
    let source = null, body = null, settled = 0;

    function close() {
      if (source) source.close();
      source = null;
      writing = false;
    }

    // `settled` nodes stay as they are; the tail behind them is written anew each time.
    function write(text) {
      if (text.opening) {
        element.innerHTML = text.opening;
        body = element.querySelector(".sc-writing");
        writing = true;
        settled = 0;
      }
      while (body.childNodes.length > settled) body.lastChild.remove();
      body.insertAdjacentHTML("beforeend", text.more);
      settled = body.childNodes.length;
      body.insertAdjacentHTML("beforeend", text.tail);
    }

    watch("value", () => {
      close();
      element.textContent = "";
      if (!props.value) return;
      const mine = new EventSource(`specchat/reply?ticket=${encodeURIComponent(props.value)}`);
      source = mine;
      mine.onmessage = (event) => {
        const { text, ...others } = JSON.parse(event.data);
        if (text) write(text);
        for (const name in others) parts[name].value = others[name];
      };
      const ended = () => { if (source === mine) { close(); trigger("select", {}); } };
      mine.addEventListener("end", ended);
      // A connection that breaks ends the reply; by then the server has noticed too, if it still runs.
      mine.onerror = () => { mine.close(); setTimeout(ended, 1000); };
    });
  };
})();
