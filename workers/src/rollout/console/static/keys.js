// Keys: j and k (or the arrows of a list of tokens) go on and back; a page works without them.
const tokens = [...document.querySelectorAll(".tokens i")];
const facts = document.getElementById("token-facts");
let chosen = tokens[0];

function describe(token) {
  const { start, prompt } = token.parentElement.dataset;
  const place = Number(start) + tokens.indexOf(token);
  const [id, logprob, version] = token.dataset.n.split(" ");
  if (logprob === undefined) return `${place}: id ${id}, ${place < Number(prompt) ? "prompt" : "environment"}, not trained on`;
  return `${place}: id ${id}, probability ${Math.exp(Number(logprob)).toFixed(4)}, logprob ${logprob}, version ${version}`;
}

function show(token) {
  token.tabIndex = 0;
  if (chosen !== token) chosen.tabIndex = -1;
  chosen = token;
  facts.textContent = describe(token);
}

if (tokens.length) {
  show(tokens[0]);
  facts.textContent = "";
  const list = tokens[0].parentElement;
  list.addEventListener("focusin", (event) => { if (event.target.dataset.n) show(event.target); });
  list.addEventListener("click", (event) => { if (event.target.dataset.n) { event.target.tabIndex = 0; event.target.focus(); } });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -tokens.length, End: tokens.length }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = Math.min(tokens.length - 1, Math.max(0, tokens.indexOf(event.target) + step));
    tokens[at].tabIndex = 0;
    tokens[at].focus();
  });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const rel = { j: "next", k: "prev" }[event.key];
  const link = rel && document.querySelector(`main a[rel=${rel}]`);
  if (link) link.click();
});
