// Browsers start no worker on a page that was opened from disk, and the search is one: there, a hidden frame does its work.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "Search";
      this.frame.srcdoc = "<!doctype html><title>Search</title><body></body>";
      this.ready = new Promise((resolve) => this.frame.addEventListener("load", () => this.start(url, resolve), { once: true }));
      document.body.append(this.frame);
    }
    start(url, resolve) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.addEventListener("load", () => resolve(inside));
      script.src = url;
      inside.document.body.append(script);
    }
    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
// The search takes a leading dash to mean "without this word" and two of them for a mistake; people who type --target mean the option.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...others) {
  const isQuery = typeof message?.data === "string";
  return post.call(this, isQuery ? { ...message, data: message.data.replace(/(^|\s)-+/g, "$1") } : message, ...others);
};
