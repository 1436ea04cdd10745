/* Line charts: uPlot with this page’s colours, fonts and direct labels.
 *
 * `chart(element, describe)` draws `describe(model)` now and at each update, but only while the chart is near the screen.
 * A description: {x, lines: [{y, color, width, dash, dots, points}], xRange, yRange, xLog, xLabel, yLabel, xTick, yTick,
 * paint(frame), pick(x), tip(index)}. `paint` draws over the lines with `frame.x`, `frame.y` (value -> pixel) and the context.
 */
"use strict";

foredraft.chart = (() => {
  const FONT = "12px 'Inter Variable', system-ui, sans-serif"; // uPlot scales the first number it finds: no weight here

  // A colour of the stylesheet by name, resolved for the current scheme.
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const label = (
    context,
    text,
    x,
    y,
    { tint = "ink", align = "left", weight = 500, size = 12.5, halo = true } = {},
  ) => {
    const scale = devicePixelRatio;
    context.font = `${weight} ${size * scale}px 'Inter Variable', system-ui, sans-serif`;
    context.textAlign = align;
    context.textBaseline = "middle";
    if (halo) {
      context.lineJoin = "round";
      context.lineWidth = 4 * scale;
      context.strokeStyle = color("paper");
      context.strokeText(text, x, y);
    }
    context.fillStyle = color(tint);
    context.fillText(text, x, y);
  };

  const dot = (context, x, y, radius, fill, ring) => {
    context.beginPath();
    context.arc(x, y, radius * devicePixelRatio, 0, 2 * Math.PI);
    context.fillStyle = color(fill);
    context.fill();
    if (!ring) return;
    context.lineWidth = 2.5 * devicePixelRatio;
    context.strokeStyle = color(ring);
    context.stroke();
  };

  const heightOf = (element) => Math.min(Number(element.dataset.height), Math.max(220, element.clientWidth * 0.72));

  const build = (element, chart) => {
    const { description } = chart;
    const narrow = element.clientWidth < 480;
    const axis = (side, scale, size) => ({
      side,
      size,
      gap: 6,
      font: FONT,
      labelFont: FONT,
      labelSize: 20,
      labelGap: 0,
      label: description[`${scale}Label`] ?? null,
      stroke: () => color("muted"),
      grid: { stroke: () => color("rule"), width: 1 },
      ticks: { show: false },
      values: (_, splits) =>
        splits.map((value) => (value === null ? "" : (chart.description[`${scale}Tick`] ?? String)(value))),
      ...(description[`${scale}Splits`] ? { splits: () => chart.description[`${scale}Splits`] } : {}),
    });
    const names = description.xNames && narrow ? { rotate: -40, size: 74 } : {};
    const frame = (plot) => ({
      context: plot.ctx,
      plot,
      x: (value) => plot.valToPos(value, "x", true),
      y: (value) => plot.valToPos(value, "y", true),
      box: plot.bbox,
      dot: (...args) => dot(plot.ctx, ...args),
      label: (...args) => label(plot.ctx, ...args),
      color,
    });
    const options = {
      width: element.clientWidth,
      height: heightOf(element),
      pxAlign: 0,
      padding: [14, description.padRight ?? 16, 0, 0],
      legend: { show: false },
      cursor: {
        drag: { setScale: false, x: false, y: false },
        y: false,
        points: { show: false },
        x: Boolean(description.tip),
      },
      scales: {
        x: { time: false, range: () => chart.description.xRange, ...(description.xLog ? { distr: 3, log: 2 } : {}) },
        y: { range: () => chart.description.yRange, ...(description.yLog ? { distr: 3, log: 10 } : {}) },
      },
      axes: [
        { ...axis(2, "x", 34), space: description.xNames ? 1 : 34, ...names },
        { ...axis(3, "y", description.yWidth ?? (narrow ? 44 : 52)), space: 40 },
      ],
      series: [
        {},
        ...description.lines.map((line, index) => ({
          stroke: () => color(chart.description.lines[index].color),
          width: line.width ?? 2,
          dash: line.dash,
          alpha: line.alpha ?? 1,
          points: {
            show: Boolean(line.dots),
            size: line.dots ?? 0,
            stroke: () => color(chart.description.lines[index].color),
            fill: () => color("paper"),
            width: 2,
          },
          spanGaps: true,
          pxAlign: 0,
        })),
      ],
      hooks: {
        drawClear: [(plot) => chart.description.under?.(frame(plot))],
        draw: [(plot) => chart.description.paint?.(frame(plot))],
        setCursor: [(plot) => showTip(chart, plot)],
      },
    };
    const plot = new uPlot(options, data(description), element);
    plot.over.addEventListener("click", ({ clientX }) => {
      const { left } = plot.over.getBoundingClientRect();
      chart.description.pick?.(plot.posToVal(clientX - left, "x"));
    });
    plot.over.style.cursor = description.pick ? "pointer" : "default";
    return plot;
  };

  const data = (description) => [description.x, ...description.lines.map((line) => line.y)];

  const showTip = (chart, plot) => {
    const { idx, left, top } = plot.cursor;
    const text = idx === null || left < 0 ? null : chart.description.tip?.(idx);
    chart.tip.hidden = !text;
    if (!text) return;
    chart.tip.textContent = text;
    const at = plot.over.offsetLeft + plot.valToPos(chart.description.x[idx], "x");
    const half = chart.tip.offsetWidth / 2;
    chart.tip.style.left = `${Math.max(half, Math.min(at, chart.element.clientWidth - half))}px`;
    chart.tip.style.top = `${Math.max(0, top - 44)}px`;
  };

  const all = [];
  const create = (element, describe) => {
    const chart = { element, describe, description: null, plot: null, visible: false, stale: true, shape: "" };
    chart.tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
    element.append(chart.tip);
    element.setAttribute("role", "img");
    all.push(chart);
    nearScreen.observe(element);
    new ResizeObserver(() => {
      element.style.minHeight = `${heightOf(element)}px`; // holds the place before the chart is drawn
      if (chart.plot && chart.plot.width !== element.clientWidth) rebuild(chart);
    }).observe(element);
    return chart;
  };

  let latest = null;
  const draw = (chart) => {
    if (!latest || !chart.visible || !chart.element.clientWidth) return;
    chart.stale = false;
    chart.description = chart.describe(latest);
    const { lines, xLabel, xNames } = chart.description;
    const shape = `${lines.length} ${xLabel} ${xNames}`; // what uPlot fixes when it is built
    if (!chart.plot || chart.shape !== shape) {
      chart.plot?.destroy();
      chart.plot = build(chart.element, chart);
      chart.shape = shape;
    } else {
      chart.plot.setData(data(chart.description));
    }
  };
  // Words follow once the reader pauses, and for every chart: assistive technology reads what is off the screen, too.
  let naming = 0;
  let named = false;
  const nameAll = () => {
    named = true;
    all.forEach(({ element, describe }) => element.setAttribute("aria-label", describe(latest).summary));
  };
  const rebuild = (chart) => {
    chart.plot?.destroy();
    chart.plot = null;
    draw(chart);
  };
  const nearScreen = new IntersectionObserver(
    (entries) =>
      entries.forEach(({ target, isIntersecting }) => {
        const chart = all.find(({ element }) => element === target);
        chart.visible = isIntersecting;
        if (isIntersecting && chart.stale) draw(chart);
      }),
    { rootMargin: "300px" },
  );

  const update = (model) => {
    latest = model;
    tables.forEach(fill);
    clearTimeout(naming);
    naming = setTimeout(nameAll, named ? 200 : 0);
    all.forEach((chart) => {
      chart.stale = true;
      draw(chart);
    });
  };
  const repaint = () => all.forEach(rebuild);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  document.fonts.ready.then(repaint);

  // The numbers of a chart as a table, kept up to date while the reader has it open. `rows(model)` gives its lines.
  const tables = [];
  const fill = ({ holder, headings, rows }) => {
    if (!latest || !holder.parentElement.open) return;
    const cell = (kind, text) => Object.assign(document.createElement(kind), { textContent: text });
    const element = document.createElement("table");
    const head = element.createTHead().insertRow();
    headings.forEach((text) => head.append(Object.assign(cell("th", text), { scope: "col" })));
    const body = element.createTBody();
    rows(latest).forEach((values) => body.insertRow().append(...values.map((text) => cell("td", text))));
    holder.replaceChildren(element);
  };
  const table = (holder, headings, rows) => {
    const one = { holder, headings, rows };
    tables.push(one);
    holder.parentElement.addEventListener("toggle", () => fill(one));
  };

  return { create, update, repaint, color, label, dot, table };
})();
