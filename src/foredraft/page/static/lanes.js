/* Two timelines on one clock: plain passes above, cycles below; a dot for every token a pass yields. */
"use strict";

foredraft.lanes = (() => {
  const canvas = document.querySelector("#cycle .lanes");
  const LANE = 34;
  const TOP = [22, 84];
  const HEIGHT = 126;

  const draw = (history, { phase, elapsed, running }) => {
    const { color, label, dot } = foredraft.chart;
    const width = canvas.clientWidth;
    const ratio = devicePixelRatio;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== HEIGHT * ratio) {
      canvas.width = Math.round(width * ratio);
      canvas.height = HEIGHT * ratio;
    }
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    const pass = Math.max(52, Math.min(92, width / 10.5)); // pixels
    const shift = Math.max(0, history.time * pass - (width - pass * 0.4));
    const x = (time) => (time * pass - shift) * ratio;

    const block = (from, to, lane, fill, alpha = 1) => {
      if (x(to) < -10 || to <= from) return;
      context.globalAlpha = alpha;
      context.fillStyle = color(fill);
      context.beginPath();
      const gap = Math.min(1, (x(to) - x(from)) / 6);
      context.roundRect(x(from) + gap, TOP[lane] * ratio, x(to) - x(from) - 2 * gap, LANE * ratio, 4 * ratio);
      context.fill();
      context.globalAlpha = 1;
    };
    // Tokens sit at the end of their pass, up to eight in a row.
    const dots = (end, lane, accepted) => {
      const total = accepted + 1;
      const gap = Math.min(10.5, (LANE - 6) / Math.ceil(total / 6));
      for (let index = 0; index < total; index += 1) {
        const fromRight = (total - 1 - index) % 6;
        const line = Math.floor((total - 1 - index) / 6);
        const lines = Math.ceil(total / 6);
        const y = TOP[lane] + LANE / 2 + (line - (lines - 1) / 2) * gap;
        dot(
          context,
          x(end) - (10 + fromRight * 12) * ratio * (pass / 92),
          y * ratio,
          3.6 * (lines > 2 ? 0.8 : 1),
          index < accepted ? "token-free" : "token-own",
        );
      }
    };

    const first = Math.max(0, Math.floor(shift / pass));
    for (let time = first; time < history.time; time += 1) {
      const end = Math.min(time + 1, history.time);
      block(time, end, 0, "pass", end === time + 1 ? 1 : 0.45);
      if (end === time + 1) dots(end, 0, 0);
    }
    history.cycles.forEach((cycle) => {
      const drafted = cycle.start + cycle.length * cycle.draftCost;
      for (let index = 0; index < cycle.length && cycle.draftCost * pass > 1.5; index += 1) {
        const from = cycle.start + index * cycle.draftCost;
        block(from, Math.min(from + cycle.draftCost, history.time), 1, "draft");
      }
      if (cycle.length && cycle.draftCost * pass <= 1.5)
        block(cycle.start, Math.min(drafted, history.time), 1, "draft");
      block(drafted, Math.min(drafted + 1, history.time), 1, "pass", cycle.end === null ? 0.45 : 1);
      if (cycle.end !== null) dots(cycle.end, 1, cycle.accepted);
    });

    const clock = x(history.time);
    context.strokeStyle = color("ink");
    context.lineWidth = ratio;
    context.globalAlpha = 0.35;
    context.beginPath();
    context.moveTo(clock, (TOP[0] - 4) * ratio);
    context.lineTo(clock, (TOP[1] + LANE + 4) * ratio);
    context.stroke();
    context.globalAlpha = 1;
    label(context, "Plain: one pass, one token", 0, (TOP[0] - 11) * ratio, { tint: "muted", halo: false, size: 12.5 });
    label(context, "With drafts: cheap drafts, one pass, several tokens", 0, (TOP[1] - 11) * ratio, {
      tint: "muted",
      halo: false,
      size: 12.5,
    });
  };
  return { draw };
})();
