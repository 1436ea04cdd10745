/* Speedup over requests at once and context, as a map with the break-even line; drag the point, or use the sliders. */
"use strict";

foredraft.map = (() => {
  const { economics, format, state, chart } = foredraft;
  const canvas = document.getElementById("map");
  const bestSwitch = document.getElementById("map-best");
  const COLUMNS = 60;
  const ROWS = 40;
  const BATCH = { low: 1, high: 512 };
  const CONTEXT = { low: 128, high: 131072 };
  const MARGIN = { left: 62, right: 14, top: 12, bottom: 44 };
  let model = null;
  let onScreen = false;
  let stale = true;

  const at = ({ low, high }, fraction) => low * (high / low) ** fraction;
  const fractionOf = ({ low, high }, value) => Math.log(Math.max(low, value) / low) / Math.log(high / low);

  const height = () => Math.min(400, Math.max(280, canvas.clientWidth * 0.62));
  const frame = () => ({
    left: MARGIN.left,
    top: MARGIN.top,
    width: canvas.clientWidth - MARGIN.left - MARGIN.right,
    height: height() - MARGIN.top - MARGIN.bottom,
  });

  const speedups = () => {
    const { length, draftCost } = model.state;
    const { passTime } = model.load;
    return Array.from({ length: ROWS }, (_, row) =>
      Array.from({ length: COLUMNS }, (__, column) => {
        const batch = Math.round(at(BATCH, column / (COLUMNS - 1)));
        const context = Math.round(at(CONTEXT, 1 - row / (ROWS - 1)));
        return bestSwitch.checked
          ? economics.bestCycle(model.survival, draftCost, passTime, context, batch, 8).speedup
          : economics.cycle(model.survival, length, draftCost, passTime, context, batch).speedup;
      }),
    );
  };

  const rgb = (name) => {
    const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    probe.fillStyle = chart.color(name);
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  // Equal steps of colour for equal ratios: half as fast is as far from neutral as twice as fast.
  const paintCells = (grid) => {
    const [loss, neutral, gain] = ["map-loss", "map-neutral", "map-gain"].map(rgb);
    const small = Object.assign(document.createElement("canvas"), { width: COLUMNS, height: ROWS });
    const context = small.getContext("2d");
    const image = context.createImageData(COLUMNS, ROWS);
    grid.forEach((line, row) =>
      line.forEach((value, column) => {
        const strength = Math.max(-1, Math.min(1, Math.log2(value) / (value > 1 ? 1.6 : 1)));
        const toward = strength < 0 ? loss : gain;
        const weight = Math.abs(strength) ** 0.85;
        const offset = 4 * (row * COLUMNS + column);
        [0, 1, 2].forEach((k) => {
          image.data[offset + k] = neutral[k] + (toward[k] - neutral[k]) * weight;
        });
        image.data[offset + 3] = 255;
      }),
    );
    context.putImageData(image, 0, 0);
    return small;
  };

  // Marching squares, in fractions of the frame.
  const contour = (grid, level) => {
    const segments = [];
    for (let row = 0; row < ROWS - 1; row += 1) {
      for (let column = 0; column < COLUMNS - 1; column += 1) {
        const corners = [
          [0, 0],
          [1, 0],
          [1, 1],
          [0, 1],
        ].map(([dx, dy]) => [column + dx, row + dy, grid[row + dy][column + dx] - level]);
        const crossings = [];
        corners.forEach(([x0, y0, v0], k) => {
          const [x1, y1, v1] = corners[(k + 1) % 4];
          if (v0 < 0 !== v1 < 0) {
            const t = v0 / (v0 - v1);
            crossings.push([(x0 + t * (x1 - x0)) / (COLUMNS - 1), (y0 + t * (y1 - y0)) / (ROWS - 1)]);
          }
        });
        for (let k = 0; k + 1 < crossings.length; k += 2) segments.push([crossings[k], crossings[k + 1]]);
      }
    }
    return segments;
  };

  const draw = () => {
    canvas.style.height = `${height()}px`;
    if (!model || !onScreen || !canvas.clientWidth) return;
    stale = false;
    const ratio = devicePixelRatio;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(height() * ratio);
    const context = canvas.getContext("2d");
    const { left, top, width, height: tall } = frame();
    const px = (fraction) => (left + fraction * width) * ratio;
    const py = (fraction) => (top + fraction * tall) * ratio;
    const grid = speedups();
    context.save();
    context.beginPath();
    context.roundRect(px(0), py(0), width * ratio, tall * ratio, 6 * ratio);
    context.clip();
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    // Cell centres lie on the frame’s edges, hence half a cell of overhang on every side.
    const [cellWidth, cellHeight] = [(width * ratio) / (COLUMNS - 1), (tall * ratio) / (ROWS - 1)];
    context.drawImage(
      paintCells(grid),
      px(0) - cellWidth / 2,
      py(0) - cellHeight / 2,
      cellWidth * COLUMNS,
      cellHeight * ROWS,
    );
    const line = (level, weight, dash) => {
      const segments = contour(grid, level);
      context.beginPath();
      segments.forEach(([[x0, y0], [x1, y1]]) => {
        context.moveTo(px(x0), py(y0));
        context.lineTo(px(x1), py(y1));
      });
      context.strokeStyle = chart.color("ink");
      context.lineWidth = weight * ratio;
      context.lineCap = "round";
      context.setLineDash(dash.map((d) => d * ratio));
      context.stroke();
      context.setLineDash([]);
      return segments;
    };
    const clear = line(1.5, 1, []);
    const even = bestSwitch.checked ? line(1.02, 1, []) : line(1, 2.5, []);
    context.restore();
    const inked = (text, x, y, options = {}) =>
      chart.label(context, text, x, y, { halo: false, tint: "muted", ...options });
    [1, 4, 16, 64, 256].forEach((batch) =>
      inked(batch, px(fractionOf(BATCH, batch)), py(1) + 14 * ratio, { align: "center" }),
    );
    [128, 1024, 8192, 65536].forEach((tokens) =>
      inked(format.count(tokens), px(0) - 8 * ratio, py(1 - fractionOf(CONTEXT, tokens)), { align: "right" }),
    );
    inked("requests at once", px(0.5), py(1) + 34 * ratio, { align: "center" });
    context.save();
    context.translate(9 * ratio, py(0.5));
    context.rotate(-Math.PI / 2);
    inked("context of each", 0, 0, { align: "center" });
    context.restore();
    // A line is named at its right end, on the side it speaks of.
    const name = (segments, text, place) => {
      if (segments.length < 6) return;
      const [x, y] = segments.flat().reduce((right, one) => (one[0] > right[0] ? one : right));
      chart.label(context, text, px(Math.min(x, 0.985)), py(Math.max(0.05, Math.min(0.95, place(y)))), {
        weight: 600,
        align: "right",
        size: 13,
        halo: false,
      });
    };
    if (!bestSwitch.checked) {
      name(even, width < 480 ? "slower" : "slower than plain", (y) => Math.max(y + 0.06, (y + 1) / 2));
      name(clear, "clear win", (y) => y - 0.045);
    }
    const point = [px(fractionOf(BATCH, model.state.batch)), py(1 - fractionOf(CONTEXT, model.state.context))];
    chart.dot(context, ...point, 8, "fast", "paper");
    const shown = bestSwitch.checked ? model.load.best : model.load.now;
    const flip = point[0] > px(0.8);
    chart.label(context, format.times(shown.speedup), point[0] + (flip ? -15 : 15) * ratio, point[1], {
      weight: 700,
      size: 14,
      align: flip ? "right" : "left",
    });
  };

  const describe = () => {
    const { state: now, load } = model;
    document.getElementById("map-description").textContent =
      `Map of speedup: requests at once from 1 to 512 across, context from 128 to 131,072 tokens upwards. ` +
      `At ${format.count(now.context)} tokens of context, ${now.length} drafts pay up to ${load.payingBatch >= 512 ? "512 or more" : load.payingBatch} requests. ` +
      "The sliders for requests and context move the point.";
  };

  const follow = (event) => {
    const box = canvas.getBoundingClientRect();
    const { left, top, width, height: tall } = frame();
    const inside = (value) => Math.max(0, Math.min(1, value));
    state.set({
      batch: Math.round(at(BATCH, inside((event.clientX - box.left - left) / width))),
      context: Math.round(at(CONTEXT, 1 - inside((event.clientY - box.top - top) / tall))),
    });
  };

  const start = () => {
    let dragging = false;
    canvas.addEventListener("pointerdown", (event) => {
      dragging = true;
      canvas.setPointerCapture(event.pointerId);
      follow(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (dragging) follow(event);
    });
    ["pointerup", "pointercancel"].forEach((kind) =>
      canvas.addEventListener(kind, () => {
        dragging = false;
      }),
    );
    bestSwitch.addEventListener("change", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    document.fonts.ready.then(draw);
    new ResizeObserver(draw).observe(canvas);
    new IntersectionObserver(
      ([entry]) => {
        onScreen = entry.isIntersecting;
        if (onScreen && stale) draw();
      },
      { rootMargin: "200px" },
    ).observe(canvas);
  };
  const update = (next) => {
    model = next;
    stale = true;
    describe();
    draw();
  };
  return { start, update };
})();
