// The page: three pages behind one connection, a theme, and the list of models that all of them share.

import { Images } from "./images.js";
import { Link } from "./link.js";
import { Plane } from "./plane.js";
import { Runs } from "./runs.js";

const PAGES = ["plane", "images", "runs"];

// The token has done its work: a cookie, which scripts cannot read, carries it from here on.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

const models = {
  list: [],
  watchers: [],
  async refresh() {
    const answer = await fetch("/models");
    if (!answer.ok) throw new Error(await answer.text());
    models.list = (await answer.json()).models;
    for (const watcher of models.watchers) watcher(models.list);
  },
};

const link = new Link();
const pages = {
  plane: new Plane(document.getElementById("page-plane"), link, models),
  images: new Images(document.getElementById("page-images"), link),
  runs: new Runs(document.getElementById("page-runs")),
};
for (const page of Object.values(pages)) models.watchers.push((list) => page.setModels(list));

let ready = false;
const connection = document.getElementById("connection");
link.watch(async (connected) => {
  connection.textContent = connected ? "connected" : "no connection; trying again";
  connection.className = connected ? "good" : "bad";
  if (!connected || ready) return;
  ready = true;
  await models.refresh().catch(() => (ready = false));
});

function showPage() {
  const chosen = PAGES.includes(location.hash.slice(1)) ? location.hash.slice(1) : "plane";
  for (const name of PAGES) {
    document.getElementById(`page-${name}`).hidden = name !== chosen;
    const tab = document.querySelector(`nav a[href="#${name}"]`);
    if (name === chosen) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  document.title = `${chosen[0].toUpperCase()}${chosen.slice(1)} · Springwell studio`;
  pages.runs.setVisible(chosen === "runs");
  pages.images.setVisible(chosen === "images");
  // Runs come and go while the studio is open.
  if (chosen === "runs" && ready) models.refresh().catch(() => {});
}

window.addEventListener("hashchange", showPage);
showPage();

const theme = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = name === "dark" ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Use ${theme.textContent.toLowerCase()} colours`);
  pages.runs.recolour();
}

setTheme(localStorage.getItem("springwell-theme") ?? (prefersDark.matches ? "dark" : "light"));
theme.addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("springwell-theme", name);
  setTheme(name);
});
