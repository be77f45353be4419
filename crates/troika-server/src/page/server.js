// What the page knows of the server: whether it answers, its models, its live events.

import { eventsOf, getJson, request } from "./api.js";
import { onChange, settings } from "./store.js";

const POLL_MS = 5000;
const SMALL_CONTEXT = 2048;

/** The limit of an answer where Settings give none: an eighth of a small context, so that several turns fit into it. */
export function usualLimit(context) {
  return context <= SMALL_CONTEXT ? Math.floor(context / 8) || undefined : undefined;
}

class Server extends EventTarget {
  status = null;
  models = [];
  /** "unknown", "ready", "locked" (a key is asked for) or "away". */
  state = "unknown";
  #watchers = 0;
  #feed = null;
  #key = settings.key;
  #asked = 0;

  constructor() {
    super();
    onChange(() => {
      if (settings.key === this.#key) return;
      this.#key = settings.key;
      this.#restart();
      this.refresh();
    });
    document.addEventListener("visibilitychange", () => {
      this.#restart();
      if (!document.hidden) this.refresh();
    });
    setInterval(() => {
      if (!document.hidden && this.#feed === null) this.refresh();
    }, POLL_MS);
  }

  /** The model that a request names when the settings name none. */
  get model() {
    return settings.model || this.status?.default_model || this.models[0] || "";
  }

  /** What the server says of that model, once it is known. */
  get entry() {
    return this.status?.models.find((model) => model.name === this.model);
  }

  /** Asks for the status and the models; the newest question wins. */
  async refresh() {
    this.#asked += 1;
    const mine = this.#asked;
    try {
      const [status, models] = await Promise.all([getJson("troika/status"), getJson("v1/models")]);
      if (mine !== this.#asked) return;
      this.#learnModels(models.data.map((model) => model.id));
      this.#learn(status);
    } catch (error) {
      if (mine === this.#asked) this.#fail(error);
    }
  }

  /** Keeps the live events coming until the returned function is called. */
  watch() {
    this.#watchers += 1;
    if (this.#watchers === 1) this.#restart();
    let held = true;
    return () => {
      if (!held) return;
      held = false;
      this.#watchers -= 1;
      if (this.#watchers === 0) this.#restart();
    };
  }

  #restart() {
    this.#feed?.abort();
    this.#feed = null;
    if (this.#watchers > 0 && !document.hidden) this.#follow();
  }

  async #follow() {
    const feed = new AbortController();
    this.#feed = feed;
    let wait = 500;
    while (!feed.signal.aborted) {
      try {
        const response = await request("troika/events", { signal: feed.signal });
        for await (const event of eventsOf(response)) {
          if (event.name !== "spans") continue;
          const told = JSON.parse(event.data);
          this.#learn(told.status);
          this.dispatchEvent(new CustomEvent("spans", { detail: told }));
          wait = 500;
        }
      } catch (error) {
        if (feed.signal.aborted) return;
        this.#fail(error);
        if (this.state === "locked") break;
      }
      await new Promise((resolve) => { setTimeout(resolve, wait); });
      wait = Math.min(wait * 2, 8000);
    }
    if (this.#feed === feed) this.#feed = null;
  }

  #learn(status) {
    if (!status) return;
    this.status = status;
    this.#become("ready");
    this.dispatchEvent(new Event("status"));
  }

  #learnModels(models) {
    if (models.join("\n") === this.models.join("\n")) return;
    this.models = models;
    this.dispatchEvent(new Event("models"));
  }

  #fail(error) {
    if (error.status === 401 || error.status === 403) this.#become("locked");
    else this.#become("away");
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    this.dispatchEvent(new Event("state"));
    // A server that comes back may have other models.
    if (state === "ready" && this.models.length === 0) this.refresh();
  }
}

export const server = new Server();
