/* The reader’s own measurements: drop a file, see its cells as lines and as a table, put one of them into the dials. */
"use strict";

foredraft.own = (() => {
  const { state, format, economics, measurements, chart } = foredraft;
  const byId = (id) => document.getElementById(id);
  const status = byId("drop-status");
  const TINTS = ["fast", "pay", "reject", "pass-ink", "ink"];
  let shown = null; // {name, bench}

  const say = (text, failed = false) => {
    status.textContent = text;
    status.classList.toggle("failed", failed);
  };

  const unique = (values) => [...new Set(values)];
  // Across: requests at once, or the workloads when the file holds one load only.
  const across = () => {
    const concurrencies = unique(shown.bench.map((cell) => cell.concurrency)).sort((a, b) => a - b);
    return concurrencies.length > 1
      ? { key: "concurrency", values: concurrencies }
      : { key: "workload", values: unique(shown.bench.map((cell) => cell.workload)) };
  };
  // A sweep has many fixed lengths: they step back behind the controller and plain decoding.
  const tintOf = (method, index) => {
    if (method.startsWith("fixed:")) return "faint";
    return { off: "muted", plain: "muted", auto: "gain" }[method] ?? TINTS[index % TINTS.length];
  };
  const lines = ({ key, values }) => {
    const cells = shown.bench.filter((cell) => key === "workload" || cell.workload === byId("workload").value);
    const mean = (some) => (some.length ? some.reduce((sum, cell) => sum + cell.speedup, 0) / some.length : null);
    return unique(cells.map((cell) => cell.method)).map((method, index) => ({
      method,
      tint: tintOf(method, index),
      y: values.map((value) => mean(cells.filter((cell) => cell.method === method && cell[key] === value))),
    }));
  };

  // Labels at the right end of the lines, pushed apart where they would touch.
  const spread = (labels, gap) => {
    labels.sort((a, b) => a.y - b.y);
    labels.forEach((one, i) => {
      if (i && one.y < labels[i - 1].y + gap) one.y = labels[i - 1].y + gap;
    });
    return labels;
  };

  const describe = () => {
    const axis = shown?.bench.length ? across() : { key: "concurrency", values: [1] };
    const methods = shown?.bench.length ? lines(axis) : [];
    const loads = axis.key === "concurrency";
    const known = (y) => y.filter((value) => value !== null);
    const top = Math.max(0, ...methods.flatMap(({ y }) => known(y)));
    const said = methods.map(({ method, y }) => `${method}: ${known(y).map(format.times).join(", ")}`).join("; ");
    const tip = (index) =>
      methods
        .filter(({ y }) => y[index] !== null)
        .map(({ method, y }) => `${method} ${format.times(y[index])}`)
        .join(", ");
    return {
      summary: `Chart of measured speedup against ${loads ? "requests at once" : "workload"}. ${said}.`,
      x: loads ? axis.values : axis.values.map((_, index) => index),
      lines: methods.map(({ y, tint }) => ({ y, color: tint, width: loads ? 2.5 : 0, dots: loads ? 7 : 11 })),
      xLog: loads,
      xRange: loads ? [axis.values[0] * 0.9, axis.values.at(-1) * 1.06] : [-0.6, axis.values.length - 0.4],
      yRange: [0, Math.max(1.5, Math.ceil(top * 2.2) / 2)],
      padRight: 110,
      xLabel: loads ? "requests at once" : null,
      yLabel: "times as fast as plain",
      xSplits: loads ? axis.values : axis.values.map((_, index) => index),
      xTick: loads ? String : (index) => axis.values[index] ?? "",
      xNames: !loads,
      yTick: (v) => `${v}×`,
      tip: (index) => `${axis.values[index]}: ${tip(index)}`,
      under: ({ context, y, box, color }) => {
        context.fillStyle = color("loss-wash");
        context.fillRect(box.left, y(1), box.width, box.top + box.height - y(1));
      },
      paint: ({ y, box, label }) => {
        const ends = methods
          .filter(({ y: values }) => known(values).length)
          .map(({ method, tint, y: values }) => ({ method, tint, y: y(known(values).at(-1)) }));
        spread(ends, 16 * devicePixelRatio).forEach(({ method, tint, y: at }) =>
          label(method, box.left + box.width + 8 * devicePixelRatio, at, {
            tint: tint === "faint" ? "muted" : tint,
            weight: 600,
          }),
        );
      },
    };
  };

  const fillTable = () => {
    const table = document.createElement("table");
    table.createCaption().textContent = `All cells of ${shown.name}`;
    const head = table.createTHead().insertRow();
    ["Method", "Workload", "Requests", "Tokens/s", "Speedup", "Tokens per pass", "Same tokens", "In the dials"].forEach(
      (text) => {
        head.append(Object.assign(document.createElement("th"), { textContent: text, scope: "col" }));
      },
    );
    const body = table.createTBody();
    shown.bench.forEach((cell) => {
      const row = body.insertRow();
      const same =
        cell.identical === null
          ? ""
          : cell.identical === true
            ? "yes"
            : cell.identical === false
              ? "no"
              : String(cell.identical);
      [
        cell.method,
        cell.workload,
        cell.concurrency,
        cell.throughput === null ? "" : cell.throughput.toFixed(1),
        format.times(cell.speedup),
        cell.tokens ? format.two(cell.tokens) : "",
        same,
      ].forEach((text) => {
        row.insertCell().textContent = text;
      });
      const numbers = measurements.asNumbers(cell);
      const last = row.insertCell();
      if (!numbers) return;
      const button = Object.assign(document.createElement("button"), {
        type: "button",
        className: "plain",
        textContent: "Use",
      });
      button.setAttribute("aria-label", `Use ${cell.method}, ${cell.workload}, ${cell.concurrency} at once`);
      button.addEventListener("click", () => {
        state.set(numbers);
        say(
          `The dials now hold ${cell.method} on ${cell.workload} at ${cell.concurrency}: a = ${format.two(numbers.acceptance)}, g = ${numbers.length}, c = ${format.cost(numbers.draftCost)}.`,
        );
      });
      last.append(button);
    });
    byId("measured-table").replaceChildren(table);
  };

  // One button a drafter: its cost and length go into the dials, the acceptance stays, since only one's own text tells it.
  const fillDrafters = (drafts) => {
    byId("measured-drafters").hidden = !drafts.length;
    byId("drafter-presets").replaceChildren(
      ...drafts.map(({ method, length, cost }) => {
        const shownLength = Math.min(state.FIELDS.length.high, length);
        const shownCost = Math.min(state.FIELDS.draftCost.high, Math.round(cost * 1000) / 1000);
        const button = Object.assign(document.createElement("button"), {
          type: "button",
          textContent: `${method}, c = ${format.cost(shownCost)}`,
        });
        button.addEventListener("click", () => {
          state.set({ length: shownLength, draftCost: shownCost });
          say(`The dials now hold the cost of ${method}: g = ${shownLength}, c = ${format.cost(shownCost)}.`);
        });
        return button;
      }),
    );
  };

  const summary = ({ meta, passes, bench, skipped }) => {
    const parts = [];
    const machine =
      typeof meta.machine === "string" ? meta.machine : (meta.machine?.accelerator ?? meta.machine?.processor);
    const facts = [meta.model, meta.weight_format, machine].filter((value) => typeof value === "string");
    if (facts.length) parts.push(`${facts.join(", ")}.`);
    if (bench.length) {
      const differing = bench.filter((cell) => cell.identical === false).length;
      const told = bench.some((cell) => cell.identical !== null);
      parts.push(
        `${bench.length} ${bench.length === 1 ? "cell" : "cells"}: ${unique(bench.map((cell) => cell.method)).join(", ")}.`,
      );
      if (told)
        parts.push(
          differing
            ? `In ${differing} of them the tokens differ from plain decoding.`
            : "The tokens are the same as plain decoding’s in every cell.",
        );
      const slower = bench.filter((cell) => cell.speedup < economics.VERDICTS[2].from).length;
      if (slower) parts.push(`${slower} ${slower === 1 ? "is" : "are"} slower than plain.`);
    }
    if (passes.length)
      parts.push(`${passes.length} measured passes now stand in for the data sheets in the section on load.`);
    if (skipped)
      parts.push(
        skipped === 1 ? "1 cell of another kind was left aside." : `${skipped} cells of other kinds were left aside.`,
      );
    return parts.join(" ");
  };

  const take = (name, text) => {
    let found;
    try {
      found = measurements.read(name, text);
    } catch (error) {
      say(error.message, true);
      return;
    }
    if (found.plan) {
      state.set(found.plan);
      say(`The dials now hold the numbers of “${name}”.`);
      return;
    }
    if (found.passes.length) {
      const label = typeof found.meta.model === "string" ? `${found.meta.model} (${name})` : name;
      foredraft.model.setMeasuredPasses({
        points: found.passes,
        passTime: economics.measuredPasses(found.passes),
        label,
      });
      const levels = unique(found.passes.map((p) => p.cached)).sort((a, b) => a - b);
      state.set({ batch: 1, context: Math.min(state.FIELDS.context.high, levels[Math.floor(levels.length / 2)]) });
    }
    shown = { name, bench: found.bench };
    byId("measured").hidden = false;
    byId("measured-summary").textContent = summary(found);
    byId("measured-table").hidden = !found.bench.length;
    byId("measured-figure").hidden = !found.bench.length;
    const workloads = unique(found.bench.map((cell) => cell.workload));
    byId("workload").replaceChildren(...workloads.map((workload) => new Option(workload, workload)));
    byId("workload-select").hidden = workloads.length < 2 || !found.bench.length || across().key === "workload";
    fillTable();
    fillDrafters(found.drafts);
    say(`Read “${name}”.`);
    state.schedule();
  };

  const forget = () => {
    shown = null;
    foredraft.model.setMeasuredPasses(null);
    byId("measured").hidden = true;
    say("Back to the data sheets.");
    state.schedule();
    byId("file").focus();
  };

  const takeFile = (file) => file && file.text().then((text) => take(file.name, text));

  const start = () => {
    chart.create(byId("measured-chart"), describe);
    byId("file").addEventListener("change", ({ target }) => {
      takeFile(target.files[0]);
      target.value = "";
    });
    byId("forget").addEventListener("click", forget);
    byId("workload").addEventListener("change", state.schedule);
    const over = (on) => byId("drop").classList.toggle("over", on);
    addEventListener("dragover", (event) => {
      event.preventDefault();
      over(true);
    });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) over(false);
    });
    addEventListener("drop", (event) => {
      event.preventDefault();
      over(false);
      takeFile(event.dataTransfer.files[0]);
    });
  };
  return { start, take };
})();
