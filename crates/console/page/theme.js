// Dark or light, as chosen last: before anything is painted, so that nothing flashes. No module, since
// modules run after the first paint.

(() => {
  try {
    const theme = localStorage.getItem("whimbrel-theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage that is forbidden: as the system says.
  }
})();
