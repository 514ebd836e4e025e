// Keeps the parts of a page that carry data-live as the server draws them now. Text comes in as nodes that the
// server has escaped; nothing of it is ever run.
const source = document.body.dataset.live;
const PAUSE_MS = 2000;
let due = false;
let timer = null;

async function refresh() {
  timer = null;
  if (!due || document.hidden || document.getElementById("pause")?.checked) return;
  due = false;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.ok) {
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]:not(body)")) {
      const next = fresh.getElementById(part.id);
      if (next && next.innerHTML !== part.innerHTML && !part.contains(document.activeElement)) {
        const open = new Set([...part.querySelectorAll("details[open]")].map((one) => one.id));
        part.replaceChildren(...next.childNodes);
        for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      }
    }
  }
  timer = setTimeout(refresh, PAUSE_MS);
}

function tell() {
  due = true;
  if (timer === null) refresh();
}

if (source) {
  let first = true;
  const events = new EventSource(source);
  events.addEventListener("moved", () => {
    if (!first) tell();
    first = false;
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && due) tell(); });
}
