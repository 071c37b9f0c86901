// The page's connection to the server. It comes back by itself, and shows the jobs of this page as they are now.
//
// Long jobs:   const job = link.start("sample", model, options, arrays);   link.on("sample", (job, event, arrays) => ...)
// Short ones:  const { header, arrays } = await link.ask("chains", model, options, arrays)

import { pack, unpack } from "./wire.js";

const LAST = ["done", "failed", "cancelled"];

export class Link {
  constructor(path = "/link") {
    this.path = path;
    this.handlers = {};
    this.jobs = new Map();
    this.watchers = [];
    this.connected = false;
    this.delay = 250;
    // A page that is loaded again is the same page; a second tab is another one.
    this.page = sessionStorage.getItem("springwell-page") ?? newName();
    sessionStorage.setItem("springwell-page", this.page);
    this.count = Number(sessionStorage.getItem("springwell-count") ?? 0);
    this.open();
  }

  open() {
    this.socket = new WebSocket(`ws://${location.host}${this.path}`);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => this.send({ kind: "hello", page: this.page });
    this.socket.onmessage = (message) => this.hear(unpack(message.data));
    this.socket.onclose = () => this.lost();
  }

  lost() {
    this.connected = false;
    this.tellWatchers();
    // Short jobs are asked for again by whoever needs them; long ones are told again by the server.
    for (const [name, job] of this.jobs) {
      if (!job.reject) continue;
      this.jobs.delete(name);
      job.reject(new Error("the connection was lost"));
    }
    setTimeout(() => this.open(), this.delay);
    this.delay = Math.min(4000, 2 * this.delay);
  }

  send(header, arrays) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(pack(header, arrays));
  }

  hear({ header, arrays }) {
    if (header.event === "welcome") {
      this.connected = true;
      this.delay = 250;
      this.forgetGone();
      this.tellWatchers();
      return;
    }
    if (header.event === "refused") return console.error(header.text);
    if (header.event === "again") {
      const { job: name, task, model, options } = header;
      const status = LAST.includes(header.status) ? header.status : "running";
      this.jobs.set(name, { name, task, model, options, status, told: true, again: true });
      this.handlers[task]?.(this.jobs.get(name), { event: "started" }, {});
      return;
    }
    const job = this.jobs.get(header.job);
    if (!job) return;
    if (LAST.includes(header.event)) job.status = header.event;
    if (job.resolve) {
      this.jobs.delete(job.name);
      if (header.event === "done") job.resolve({ header, arrays });
      else job.reject(new Error(header.text ?? header.event));
      return;
    }
    this.handlers[job.task]?.(job, header, arrays);
  }

  /** A job that the server knows nothing of any more has ended with a server that was ended. */
  forgetGone() {
    for (const job of this.jobs.values()) {
      if (!job.told && job.status === "running") {
        job.status = "failed";
        this.handlers[job.task]?.(job, { event: "failed", text: "the studio was started anew; ask again" }, {});
      }
      job.told = false;
    }
  }

  newJob(task, model, options) {
    sessionStorage.setItem("springwell-count", ++this.count);
    const job = { name: String(this.count), task, model, options, status: "running" };
    this.jobs.set(job.name, job);
    return job;
  }

  /** Starts a long job; what it tells goes to the handler of its task. */
  start(task, model, options, arrays) {
    const job = this.newJob(task, model, options);
    this.handlers[task]?.(job, { event: "started" }, {});
    if (this.connected) this.send({ kind: "start", job: job.name, task, model, options }, arrays);
    else {
      job.status = "failed";
      this.handlers[task]?.(job, { event: "failed", text: "there is no connection to the studio; try again in a moment" }, {});
    }
    return job;
  }

  /** Has a short job done and waits for its answer. */
  ask(task, model, options, arrays) {
    const job = this.newJob(task, model, options);
    const answer = new Promise((resolve, reject) => Object.assign(job, { resolve, reject }));
    if (this.connected) this.send({ kind: "start", job: job.name, task, model, options }, arrays);
    else {
      this.jobs.delete(job.name);
      job.reject(new Error("the connection was lost"));
    }
    return answer;
  }

  cancel(job) {
    if (job) this.send({ kind: "cancel", job: job.name });
  }

  on(task, handler) {
    this.handlers[task] = handler;
  }

  /** Calls back with true or false whenever the connection comes or goes. */
  watch(watcher) {
    this.watchers.push(watcher);
    watcher(this.connected);
  }

  tellWatchers() {
    for (const watcher of this.watchers) watcher(this.connected);
  }

  /** The address of a file of a job's result. */
  file(job, name) {
    return `/download/${this.page}/${job.name}/${name}`;
  }
}

function newName() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
