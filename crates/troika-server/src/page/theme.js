// Runs before the first paint, so that a chosen scheme does not flash.
try {
  const kept = JSON.parse(localStorage.getItem("troika.settings") || "{}").theme;
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // Without storage the page follows the system.
}
