/* Under load: the time of a pass against its rows, and the speedup against requests at once. */
"use strict";

foredraft.load = (() => {
  const { economics, format, state, chart } = foredraft;
  const LARGEST = 512;
  const powers = (from, to, perDoubling) => {
    const values = [];
    for (let k = Math.log2(from) * perDoubling; k <= Math.log2(to) * perDoubling + 1e-9; k += 1)
      values.push(2 ** (k / perDoubling));
    return values;
  };
  const BATCHES = [...new Set(powers(1, LARGEST, 8).map(Math.round))];
  const ROWS = powers(1, 8192, 4);

  const decades = (low, high) => {
    const values = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) values.push(10 ** power);
    return values;
  };

  const describePass = (model) => {
    const { batch, context } = model.state;
    const { load } = model;
    const largest = Math.max(
      64,
      load.measured ? Math.max(...load.measured.points.map((p) => p.rows)) * 2 : 4096,
      load.rows * 1.5,
    );
    const rows = ROWS.filter((r) => r <= largest);
    const time = rows.map((r) => load.passTime(r, batch * context, batch));
    const low = Math.floor(Math.log10(Math.min(...time)) - 0.15);
    const high = Math.ceil(Math.log10(Math.max(...time)) + 0.05);
    return {
      summary:
        `Line chart of the time of one pass against its rows, both on logarithmic scales. ${format.count(batch)} rows take ${format.milliseconds(load.plainTime)}, ` +
        `${format.count(load.rows)} rows take ${format.milliseconds(load.verifyTime)}.`,
      x: rows,
      lines: [{ y: time, color: "pass-ink", width: 3 }],
      xLog: true,
      yLog: true,
      xRange: [1, largest],
      yRange: [10 ** low, 10 ** high],
      padRight: 18,
      xLabel: "rows in the pass",
      yWidth: 64,
      xSplits: rows.length ? [1, 4, 16, 64, 256, 1024, 4096].filter((r) => r <= largest) : [],
      ySplits: decades(low, high),
      xTick: format.count,
      yTick: format.round,
      tip: (index) => `${format.count(rows[index])} rows: ${format.milliseconds(time[index])}`,
      under: ({ context: c, x, box, color }) => {
        c.fillStyle = color("draft-wash");
        c.fillRect(x(batch), box.top, x(load.rows) - x(batch), box.height);
      },
      paint: ({ x, y, dot, label, box }) => {
        const ratio = devicePixelRatio;
        load.measured?.points.forEach((p) => dot(x(p.rows), y(p.milliseconds), 3, "faint"));
        dot(x(batch), y(load.plainTime), 6, "pass-ink");
        dot(x(load.rows), y(load.verifyTime), 6, "pay");
        const below = Math.min(y(load.plainTime) + 20 * ratio, box.top + box.height - 10 * ratio);
        label("plain", x(batch), below, {
          tint: "pass-ink",
          align: x(batch) < box.left + 30 * ratio ? "left" : "center",
          weight: 650,
        });
        if (load.rows !== batch)
          label("with drafts", x(load.rows), y(load.verifyTime) - 17 * ratio, {
            tint: "pay",
            align: x(load.rows) > box.left + box.width * 0.7 ? "right" : "center",
            weight: 650,
          });
      },
    };
  };

  const curves = (model) => {
    const { length, draftCost, context } = model.state;
    const { passTime } = model.load;
    return {
      fixed: BATCHES.map(
        (batch) => economics.cycle(model.survival, length, draftCost, passTime, context, batch).speedup,
      ),
      best: BATCHES.map((batch) => economics.bestCycle(model.survival, draftCost, passTime, context, batch)),
    };
  };

  const describeBatch = (model) => {
    const { fixed, best } = curves(model);
    const { batch, length } = model.state;
    const bestSpeedups = best.map((point) => point.speedup);
    const top = Math.max(2, Math.ceil(Math.max(...bestSpeedups) * 1.1 * 2) / 2);
    return {
      summary:
        `Line chart of speedup against requests at once, 1 to 512. With ${length} drafts it goes from ${format.times(fixed[0])} to ${format.times(fixed.at(-1))}; ` +
        `with the best length at each load from ${format.times(bestSpeedups[0])} to ${format.times(bestSpeedups.at(-1))}.`,
      x: BATCHES,
      lines: [
        { y: bestSpeedups, color: "gain", width: 3 },
        { y: fixed, color: "fast", width: 3 },
      ],
      xLog: true,
      xRange: [1, LARGEST],
      yRange: [0, top],
      padRight: 18,
      xLabel: "requests at once",
      yLabel: "speedup",
      xSplits: [1, 4, 16, 64, 256],
      yTick: (v) => `${v}×`,
      pick: (at) => state.set({ batch: Math.max(1, Math.min(LARGEST, Math.round(at))) }),
      tip: (index) =>
        `${BATCHES[index]}: fixed ${format.times(fixed[index])}, best (${best[index].length}) ${format.times(bestSpeedups[index])}`,
      under: ({ context, y, box, color }) => {
        context.fillStyle = color("loss-wash");
        context.fillRect(box.left, y(1), box.width, box.top + box.height - y(1));
      },
      paint: ({ context, x, y, dot, label, box, color }) => {
        const ratio = devicePixelRatio;
        context.strokeStyle = color("faint");
        context.lineWidth = ratio;
        context.beginPath();
        context.moveTo(x(batch), box.top);
        context.lineTo(x(batch), box.top + box.height);
        context.stroke();
        dot(x(batch), y(model.load.best.speedup), 6, "gain");
        dot(x(batch), y(model.load.now.speedup), 6, "fast");
        const edge = box.left + box.width - 4 * ratio;
        label("best length", edge, y(bestSpeedups.at(-1)) - 14 * ratio, { tint: "gain", align: "right", weight: 650 });
        label(`always ${length}`, edge, y(fixed.at(-1)) + 15 * ratio, { tint: "fast", align: "right", weight: 650 });
      },
    };
  };

  const row =
    ({ survival, load, state: { length, draftCost, context } }) =>
    (batch) => {
      const fixed = economics.cycle(survival, length, draftCost, load.passTime, context, batch);
      const best = economics.bestCycle(survival, draftCost, load.passTime, context, batch);
      return [
        batch,
        `${format.two(fixed.cost - length * draftCost)} passes`,
        format.times(fixed.speedup),
        best.length,
        format.times(best.speedup),
      ];
    };

  // What was measured, and whether the present point lies within it.
  const reachOf = ({ points }, rows, cached) => {
    const most = { rows: Math.max(...points.map((p) => p.rows)), cached: Math.max(...points.map((p) => p.cached)) };
    const measured = `Up to ${format.count(most.rows)} rows and ${format.count(most.cached)} cached tokens`;
    return rows > most.rows || cached > most.cached
      ? `${measured}; the present point lies beyond and continues the lines.`
      : `${measured}.`;
  };

  const note = document.getElementById("source-note");
  const update = (model) => {
    const { measured, rows } = model.load;
    note.hidden = !measured;
    note.textContent = measured
      ? `Pass times measured: ${measured.label}. ${reachOf(measured, rows, model.state.batch * model.state.context)}`
      : "";
    ["machine", "model", "weights"].forEach((id) => {
      document.getElementById(id).disabled = Boolean(measured);
    });
  };
  const start = () => {
    chart.create(document.getElementById("pass-chart"), describePass);
    chart.create(document.getElementById("batch-chart"), describeBatch);
    chart.table(
      document.getElementById("batch-table"),
      ["Requests", "Checking pass", "Speedup, fixed length", "Best length", "Its speedup"],
      (model) => [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].map(row(model)),
    );
  };
  return { start, update };
})();
