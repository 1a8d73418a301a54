// Search runs in a worker, and browsers refuse workers on pages that are opened from a folder. There, and only there,
// a hidden frame does the worker's part: it runs the script and passes messages both ways.
if (location.protocol === "file:") {
  window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.postMessage = (data) => setTimeout(() => this.tell(data)); // never within the sender's own turn
      this.ready = new Promise((resolve) => {
        const script = inside.document.createElement("script");
        script.src = address;
        script.onload = resolve;
        inside.document.append(inside.document.createElement("html"));
        inside.document.documentElement.append(script);
      });
      inside.document.close();
    }
    tell(data) {
      const message = new MessageEvent("message", { data });
      this.dispatchEvent(message);
      this.onmessage?.(message);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
