// The search runs in a worker, which browsers refuse to a page that was opened from a folder. There, an invisible
// frame takes the worker's place: it runs the same script, and messages pass as events. (The theme looks for the name
// of this file, and would otherwise load such a script from another server.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><title>search</title><body></body>");
      inside.document.close();
      const run = (address) =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script");
          Object.assign(script, { src: address, onload: done, onerror: failed });
          inside.document.body.append(script);
        });
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => run(address)), Promise.resolve());
      inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      };
      this.ready = run(url);
    }

    postMessage(data) {
      this.ready.then(() => {
        const message = new MessageEvent("message", { data: structuredClone(data) });
        this.frame.contentWindow.dispatchEvent(message);
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
