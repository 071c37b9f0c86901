/* Browsers refuse workers of pages that are read from disk. There a hidden frame runs the site's search in place of a worker. */
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.appendChild(this.frame);
    const inside = this.frame.contentWindow;
    addEventListener("message", (event) => {
      if (event.source === inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
    });
    const load = (...urls) =>
      urls.reduce(
        (before, next) =>
          before.then(
            () =>
              new Promise((resolve) => {
                const script = document.createElement("script");
                script.src = next;
                script.onload = resolve;
                document.body.appendChild(script);
              }),
          ),
        Promise.resolve(),
      );
    inside.document.open();
    inside.document.write(
      `<body><script>postMessage = (data) => parent.postMessage(data, "*"); importScripts = ${load};<\/script>` +
        `<script src="${url}"><\/script></body>`,
    );
    inside.document.close();
    this.ready = new Promise((resolve) => (inside.onload = resolve));
  }

  postMessage(data) {
    this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
