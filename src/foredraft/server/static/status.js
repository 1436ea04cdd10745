// Fills the status page from status.json, once a second while the page is visible.
"use strict";

const REMEMBERED = 120; // seconds of throughput in the drawing
const MOST_PLACES = 12; // as many columns as fit on a phone
const PHASES = { draft: "drafting", verify: "target passes", host: "everything else" };
const rates = []; // of the last seconds, in tokens per second

const byId = (id) => document.getElementById(id);
const show = (id, text) => {
  if (byId(id).textContent !== text) byId(id).textContent = text;
};
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const number = (value, digits = 0) =>
  value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const percent = (value) => (value == null ? "–" : `${number(100 * value, value < 0.1 ? 1 : 0)}%`);

function duration(seconds) {
  const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

// One bar in parts, and what each part is; `parts` are {name, words, amount}.
function shares(id, parts, otherwise) {
  const total = parts.reduce((sum, { amount }) => sum + amount, 0);
  if (!total) {
    byId(id).replaceChildren(make("p", { className: "quiet", textContent: otherwise }));
    return;
  }
  const bar = make("div", { className: "bar" });
  const legend = make("ul");
  bar.setAttribute("aria-hidden", "true");
  for (const { name, words, amount } of parts) {
    const part = make("span", { className: name });
    part.style.flexGrow = amount / total;
    bar.append(part);
    legend.append(make("li", { className: name }, `${words} `, make("b", { textContent: percent(amount / total) })));
  }
  byId(id).replaceChildren(bar, legend);
}

// How many drafts were still right, by their place in the draft: a column for each place, its percentage above.
function depths(survival) {
  const list = make("ol", { className: "depths" });
  survival.slice(0, MOST_PLACES).forEach((share, index) => {
    const bar = make("span");
    bar.style.height = `${100 * share}%`;
    list.append(make("li", {}, number(100 * share), make("div", { className: "column" }, bar), String(index + 1)));
  });
  return list;
}

function drafter({ method, drafted, accepted, acceptance_rate: rate, acceptance_length: length, survival }) {
  const figures = make("dl", { className: "figures small" });
  const facts = {
    Drafter: method,
    "Draft tokens verified": number(drafted),
    Accepted: `${number(accepted)}${rate == null ? "" : ` (${percent(rate)})`}`,
    "Acceptance length": number(length, 2),
  };
  for (const [name, value] of Object.entries(facts)) {
    figures.append(make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value })));
  }
  if (!survival.length) return [figures];
  return [figures, make("h3", { textContent: "Percent that were right up to draft 1, 2, 3, …" }), depths(survival)];
}

function draw(rate) {
  rates.push(rate);
  rates.splice(0, rates.length - REMEMBERED);
  const top = Math.max(1, ...rates);
  const first = REMEMBERED - rates.length;
  const points = rates.map((value, index) => `${first + index},${31 - (30 * value) / top}`);
  const shape = (name, data) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("class", name);
    path.setAttribute("d", data);
    return path;
  };
  const line = `M${points.join("L")}`;
  const area = `${line}L${REMEMBERED - 1},32L${first},32Z`;
  byId("history").replaceChildren(shape("area", area), shape("line", line));
  show("peak", `peak ${number(Math.max(...rates), 1)}`);
}

function render(status) {
  document.title = `${status.model} · foredraft`;
  show("model", status.model);
  show("state", status.state);
  byId("lamp").className = `lamp ${status.state}`;
  show("uptime", ` · up ${duration(status.uptime_seconds)} · version ${status.version}`);
  show("rate", number(status.tokens_per_second, 1));
  const speedup = status.speedup_over_plain;
  show("speedup", speedup == null ? "–" : `${number(speedup, 2)}×`);
  byId("speedup").classList.toggle("gains", speedup >= 1.05);
  show("running", number(status.running));
  show("waiting", number(status.waiting));
  show("prompt", number(status.prompt_tokens_per_second, 1));
  show("cache", percent(status.cache_usage));
  show("finished", number(status.finished));
  show("aborted", number(status.aborted));
  show("explanation", status.explanation);
  shares(
    "reasons",
    status.reasons.map(({ reason, words, steps }) => ({ name: reason, words, amount: steps })),
    "Drafts were weighed in none of them.",
  );
  shares(
    "phases",
    Object.entries(status.step_seconds).map(([name, amount]) => ({ name, words: PHASES[name], amount })),
    "Nothing ran in the last ten seconds.",
  );
  const drafters = status.drafters.flatMap(drafter);
  const none = make("p", { className: "quiet", textContent: "There is no drafter: every step decodes plainly." });
  byId("drafters").replaceChildren(...(drafters.length ? drafters : [none]));
  draw(status.tokens_per_second);
}

async function refresh() {
  if (!document.hidden) {
    try {
      render(await (await fetch("status.json", { cache: "no-store" })).json());
    } catch {
      show("state", "not reachable");
      byId("lamp").className = "lamp unreachable";
    }
  }
  setTimeout(refresh, 1000);
}

refresh();
