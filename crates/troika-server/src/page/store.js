// What the browser keeps: the settings, and named values for other files.

const PREFIX = "troika.";
const memory = new Map();
const listeners = new Set();

/** Settings as typed. An empty one is left to the server. */
export const DEFAULTS = {
  key: "", model: "", system: "", temperature: "", top_p: "", top_k: "", min_p: "",
  max_tokens: "", seed: "", stop: "", reasoning: "folded", theme: "system",
};

/** Limits of the numbers: least, most, whole or not. */
export const LIMITS = {
  temperature: { least: 0, most: 2 },
  top_p: { least: 0, most: 1 },
  top_k: { least: 0, most: 1000000, whole: true },
  min_p: { least: 0, most: 1 },
  max_tokens: { least: 1, most: 10000000, whole: true },
  seed: { least: 0, most: Number.MAX_SAFE_INTEGER, whole: true },
};

export function load(name, fallback) {
  try {
    // What found no room in the storage is newer than what lies there.
    const text = memory.get(name) ?? localStorage.getItem(PREFIX + name);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback;
  }
}

/** Keeps a value; false if the browser refused and only this page's memory has it. */
export function save(name, value) {
  const text = JSON.stringify(value);
  try {
    localStorage.setItem(PREFIX + name, text);
    memory.delete(name);
    return true;
  } catch {
    memory.set(name, text);
    return false;
  }
}

export function remove(name) {
  memory.delete(name);
  try {
    localStorage.removeItem(PREFIX + name);
  } catch {
    // Nothing was kept, so nothing is left.
  }
}

export const settings = { ...DEFAULTS, ...load("settings", {}) };

export function change(changes) {
  Object.assign(settings, changes);
  const kept = save("settings", settings);
  for (const listener of listeners) listener(settings);
  return kept;
}

export function onChange(listener) {
  listeners.add(listener);
}

// Another tab of this page may have changed them.
addEventListener("storage", (event) => {
  if (event.key !== `${PREFIX}settings`) return;
  Object.assign(settings, DEFAULTS, load("settings", {}));
  for (const listener of listeners) listener(settings);
});

/** What is wrong with a number as typed, in words, or null. */
export function complaint(name, text) {
  const { least, most, whole } = LIMITS[name];
  if (text.trim() === "") return null;
  const value = Number(text);
  if (!Number.isFinite(value) || (whole && !Number.isInteger(value))) return whole ? "Give a whole number." : "Give a number.";
  if (value < least || value > most) return most > 1000000 ? `Give ${least} or more.` : `Give a number from ${least} to ${most}.`;
  return null;
}

/** The request's fields that the settings ask for. */
export function sampling() {
  const fields = {};
  for (const name of Object.keys(LIMITS)) {
    const text = settings[name].trim();
    if (text !== "" && complaint(name, text) === null) fields[name] = Number(text);
  }
  const stop = settings.stop.split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n"));
  if (stop.length > 0) fields.stop = stop;
  return fields;
}
