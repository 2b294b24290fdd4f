// Before the first paint: the theme that was chosen here, if one was.
{
  const kept = localStorage.getItem("proteus-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}
