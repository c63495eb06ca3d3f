// Sets the chosen theme before anything is painted, so that a dark page never flashes white.
// A classic script on purpose: modules run too late for that.
(function () {
  try {
    const chosen = window.localStorage.getItem("shardcost-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden: the system's theme then stands.
  }
})();
