// Fills the status page from status.json, once a second while the page is visible.
"use strict";

const show = (id, text) => { document.getElementById(id).textContent = text; };
const number = (value, digits = 0) =>
  value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const percent = (value) => (value == null ? "–" : `${number(100 * value, 1)} %`);

function duration(seconds) {
  const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

function explain(decision) {
  if (!decision) return "No drafts to decide about: the last step decoded plainly.";
  const ms = (value) => `${number(value, 1)} ms`;
  const rate = (tokens, milliseconds) => `${number((1000 * tokens) / milliseconds)} tokens/s`;
  const plain = `plain decoding gives ${number(decision.plain_tokens)} in ${ms(decision.plain_milliseconds)} ` +
    `(${rate(decision.plain_tokens, decision.plain_milliseconds)})`;
  if (!decision.nodes) return `Verify nothing: no number of drafts beats plain decoding; ${plain}.`;
  return `Verify ${decision.nodes} drafts: ${number(decision.tokens, 2)} tokens expected in ${ms(decision.milliseconds)} ` +
    `(${rate(decision.tokens, decision.milliseconds)}), while ${plain}.`;
}

function render(status) {
  document.title = `${status.model} · foredraft`;
  show("model", status.model);
  show("state", status.state);
  show("uptime", `· up ${duration(status.uptime_seconds)} · foredraft ${status.version}`);
  show("rate", number(status.tokens_per_second, 1));
  show("speedup", status.speedup_over_plain == null ? "–" : `${number(status.speedup_over_plain, 2)} ×`);
  show("running", number(status.running));
  show("waiting", number(status.waiting));
  show("prompt", number(status.prompt_tokens_per_second, 1));
  show("cache", percent(status.cache_usage));
  show("finished", number(status.finished));
  show("aborted", number(status.aborted));
  show("decision", explain(status.decision));
  const total = Object.values(status.step_seconds).reduce((sum, value) => sum + value, 0);
  show("phases", total ? Object.entries(status.step_seconds)
    .map(([name, value]) => `${name} ${percent(value / total)}`).join(" · ") : "idle");
  document.getElementById("rows").replaceChildren(...status.drafters.map((drafter) => {
    const row = document.createElement("tr");
    for (const text of [drafter.method, number(drafter.drafted), number(drafter.accepted),
      percent(drafter.acceptance_rate), number(drafter.acceptance_length, 2)]) {
      row.insertCell().textContent = text;
    }
    return row;
  }));
}

async function refresh() {
  if (!document.hidden) {
    try {
      render(await (await fetch("status.json", { cache: "no-store" })).json());
    } catch {
      show("state", "not reachable");
    }
  }
  setTimeout(refresh, 1000);
}

refresh();
