/* Speedup against draft length: the best point marked, the present one, and what other acceptances would give. */
"use strict";

foredraft.lengths = (() => {
  const { economics, format, state, chart } = foredraft;
  const FAMILY = [0.5, 0.6, 0.7, 0.8, 0.9];
  const X = Array.from({ length: economics.LONGEST + 1 }, (_, g) => g);

  const describe = (model) => {
    const { length, draftCost } = model.state;
    const family = FAMILY.map((acceptance) => X.map((g) => economics.speedup(acceptance, g, draftCost)));
    const top = Math.max(
      2,
      Math.ceil(Math.max(model.bestSpeedup * 1.12, Math.min(family[4][8], model.bestSpeedup * 1.4)) * 2) / 2,
    );
    return {
      summary:
        `Line chart of speedup against draft length, 0 to 16. It starts at 1, is highest at ${model.bestLength} drafts with ` +
        `${format.times(model.bestSpeedup)}, and is ${format.times(model.speedups[16])} at 16. At ${length} drafts it is ${format.times(model.speedup)}.`,
      x: X,
      lines: [
        ...family.map((y) => ({ y, color: "faint", width: 1.25 })),
        { y: model.speedups, color: "fast", width: 3, dots: 6 },
      ],
      xRange: [-0.35, 16.4],
      yRange: [0, top],
      padRight: 58,
      xLabel: "draft length",
      yLabel: "times as fast as plain",
      xSplits: X.filter((g) => g % 2 === 0),
      yTick: (v) => `${v}×`,
      pick: (at) => state.set({ length: Math.max(0, Math.min(16, Math.round(at))) }),
      tip: (index) => `${index} ${index === 1 ? "draft" : "drafts"}: ${format.times(model.speedups[index])}`,
      under: ({ context, y, box, color }) => {
        context.fillStyle = color("loss-wash");
        context.fillRect(box.left, y(1), box.width, box.top + box.height - y(1));
      },
      paint: ({ context, x, y, box, label, dot, color }) => {
        const ratio = devicePixelRatio;
        context.strokeStyle = color("muted");
        context.lineWidth = ratio;
        context.setLineDash([4 * ratio, 4 * ratio]);
        context.beginPath();
        context.moveTo(box.left, y(1));
        context.lineTo(box.left + box.width, y(1));
        context.stroke();
        context.setLineDash([]);
        label("plain decoding", box.left + box.width - 6 * ratio, y(1) + 11 * ratio, { tint: "muted", align: "right" });
        family.forEach((values, i) => {
          const inside = values.at(-1) <= top;
          if (inside)
            label(`a = ${FAMILY[i]}`, box.left + box.width + 6 * ratio, y(values.at(-1)), {
              tint: "muted",
              size: 11.5,
              halo: false,
            });
        });
        dot(x(model.bestLength), y(model.bestSpeedup), 10, "paper", "gain");
        dot(x(length), y(model.speedup), 6, "fast");
        const nearTop = y(model.bestSpeedup) - box.top < 26 * ratio;
        const right = model.bestLength > 11;
        label(
          `best: ${model.bestLength}, ${format.times(model.bestSpeedup)}`,
          x(model.bestLength) + (nearTop ? (right ? -16 : 16) * ratio : 0),
          y(model.bestSpeedup) - (nearTop ? 0 : 22 * ratio),
          {
            tint: "gain",
            weight: 650,
            align: nearTop ? (right ? "right" : "left") : model.bestLength < 2 ? "left" : right ? "right" : "center",
            size: 13.5,
          },
        );
        if (length !== model.bestLength) {
          label(`now: ${format.times(model.speedup)}`, x(length), y(model.speedup) + 20 * ratio, {
            tint: "fast",
            weight: 650,
            align: length < 2 ? "left" : length > 14 ? "right" : "center",
            size: 13.5,
          });
        }
      },
    };
  };

  const row = (model) => (g) => {
    const tokens = economics.tokensFromSurvival(model.survival, g);
    const cost = economics.costPerCycle(g, model.state.draftCost);
    return [
      g,
      format.two(tokens),
      format.two(cost),
      format.times(model.speedups[g]),
      economics.verdict(model.speedups[g]),
    ];
  };

  const start = () => {
    chart.create(document.getElementById("lengths-chart"), describe);
    chart.table(
      document.getElementById("lengths-table"),
      ["Draft length", "Tokens per cycle", "Passes per cycle", "Speedup", "Verdict"],
      (model) => X.map(row(model)),
    );
    document.getElementById("use-best").addEventListener("click", () => {
      state.set({ length: foredraft.model.of(state.get()).bestLength });
    });
  };
  return { start };
})();
