/* Sliders, selects, draggable numbers in the text, and the texts that follow the state.
 *
 * An element with data-bind="field" sets that field; one with data-text or data-value shows a value of `texts(model)`.
 * A draggable number is a slider to assistive technology: arrows, page keys, Home and End work.
 */
"use strict";

foredraft.format = (() => {
  const two = (value) => value.toFixed(2);
  const count = (value) => Math.round(value).toLocaleString("en-US");
  const times = (value) => `${two(value)}×`;
  const percent = (value) => `${Math.round(value * 100)}%`;
  const cost = (value) => (Math.round(value * 1000) % 10 ? value.toFixed(3) : two(value));
  const milliseconds = (value) => {
    if (value < 0.995) return `${(value * 1000).toPrecision(3)} µs`;
    return value < 995 ? `${value.toPrecision(3)} ms` : `${(value / 1000).toPrecision(3)} s`;
  };
  const round = (value) => milliseconds(value).replace(/\.0+ /, " "); // for the ticks of an axis
  const field = (name, value) =>
    ({ acceptance: two, secondChance: two, draftCost: cost })[name]?.(value) ?? count(value);
  return { two, count, times, percent, cost, milliseconds, round, field };
})();

foredraft.controls = (() => {
  const { state, format, presets } = foredraft;
  const LOG_STEPS = 600;
  const bound = [];

  // Sliders over several orders of magnitude move on a logarithmic track; 1 is added so that 0 has a place.
  const toTrack = (field, value) =>
    Math.round((LOG_STEPS * Math.log((value + 1) / (field.low + 1))) / Math.log((field.high + 1) / (field.low + 1)));
  const fromTrack = (field, track) =>
    Math.round((field.low + 1) * ((field.high + 1) / (field.low + 1)) ** (track / LOG_STEPS) - 1);

  const clamp = (field, value) => {
    const stepped = Math.round(value / field.step) * field.step;
    return Math.min(field.high, Math.max(field.low, Number(stepped.toFixed(4))));
  };
  const nudge = (field, value, steps) => {
    if (field.high < 1000 && field.key !== "b") return clamp(field, value + steps * field.step);
    const track = fromTrack(field, toTrack(field, value) + steps * 6);
    return clamp(field, track === value ? value + Math.sign(steps) : track);
  };

  const bindRange = (input) => {
    const name = input.dataset.bind;
    const field = state.FIELDS[name];
    const log = input.dataset.scale === "log";
    Object.assign(
      input,
      log ? { min: 0, max: LOG_STEPS, step: 1 } : { min: field.low, max: field.high, step: field.step },
    );
    input.addEventListener("input", () => {
      const value = Number(input.value);
      state.set({ [name]: log ? fromTrack(field, value) : clamp(field, value) });
    });
    bound.push((now) => {
      const position = log ? toTrack(field, now[name]) : now[name];
      if (Number(input.value) !== position) input.value = position;
      input.style.setProperty("--fill", `${(100 * (position - input.min)) / (input.max - input.min)}%`);
      input.setAttribute("aria-valuetext", format.field(name, now[name]));
    });
  };

  const bindSelect = (select) => {
    const name = select.dataset.bind;
    const options = { machine: presets.machines, model: presets.models, weights: presets.weights }[name];
    options.forEach(({ id, name: text }) => select.append(new Option(text, id)));
    select.addEventListener("change", () => state.set({ [name]: select.value }));
    bound.push((now) => {
      select.value = now[name];
    });
  };

  const PIXELS_PER_STEP = { length: 14, nodes: 8, draftCost: 3, acceptance: 3, secondChance: 3, batch: 3, context: 3 };

  const bindScrub = (span) => {
    const name = span.dataset.bind;
    const field = state.FIELDS[name];
    Object.entries({
      role: "slider",
      tabindex: 0,
      "aria-label": field.name,
      "aria-valuemin": field.low,
      "aria-valuemax": field.high,
    }).forEach(([key, value]) => span.setAttribute(key, value));
    const move = (steps) => state.set({ [name]: nudge(field, state.get()[name], steps) });
    const KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 5, PageDown: -5 };
    span.addEventListener("keydown", (event) => {
      if (event.key in KEYS) move(KEYS[event.key]);
      else if (event.key === "Home") state.set({ [name]: field.low });
      else if (event.key === "End") state.set({ [name]: field.high });
      else return;
      event.preventDefault();
    });
    let origin = null;
    span.addEventListener("pointerdown", (event) => {
      origin = { x: event.clientX, done: 0 };
      span.setPointerCapture(event.pointerId);
      span.classList.add("dragging");
    });
    span.addEventListener("pointermove", (event) => {
      if (!origin) return;
      const steps = Math.trunc((event.clientX - origin.x) / PIXELS_PER_STEP[name]);
      if (steps !== origin.done) move(steps - origin.done);
      origin.done = steps;
    });
    const release = () => {
      origin = null;
      span.classList.remove("dragging");
    };
    span.addEventListener("pointerup", release);
    span.addEventListener("pointercancel", release);
    bound.push((now) => {
      span.textContent = format.field(name, now[name]);
      span.setAttribute("aria-valuenow", now[name]);
      span.setAttribute("aria-valuetext", span.textContent);
    });
  };

  const texts = (model) => {
    const { state: now, survival, load } = model;
    const { two, times, percent, count, milliseconds, field } = format;
    return {
      ...Object.fromEntries(
        ["acceptance", "length", "draftCost", "batch", "context"].map((n) => [n, field(n, now[n])]),
      ),
      tokens: two(model.tokens),
      cost: two(model.cost),
      speedup: times(model.speedup),
      survival1: percent(survival[0]),
      survival2: percent(survival[1]),
      survival3: percent(survival[2]),
      bestLength: String(model.bestLength),
      bestSpeedup: times(model.bestSpeedup),
      waterline: two(model.waterline),
      breakEvenAcceptance: model.breakEvenAcceptance === null ? "none" : two(model.breakEvenAcceptance),
      breakEvenCost: model.breakEvenCost === null ? "any" : two(model.breakEvenCost),
      treeTokens: two(model.treeTokens),
      chainTokens: two(model.chainTokens),
      treeDepth: String(model.treeDepth),
      chainDepth: String(now.nodes),
      chainCeiling: Number.isFinite(model.chainCeiling) ? two(model.chainCeiling) : "∞",
      rows: count(load.rows),
      plainTime: milliseconds(load.plainTime),
      verifyTime: milliseconds(load.verifyTime),
      verifyRatio: two(load.verifyTime / load.plainTime),
      payingBatch: load.payingBatch >= 512 ? "512 or more" : String(load.payingBatch),
      loadSpeedup: times(load.now.speedup),
      loadBestLength: String(load.best.length),
      loadBestSpeedup: times(load.best.speedup),
    };
  };

  const start = () => {
    document.querySelectorAll("input[type=range][data-bind]").forEach(bindRange);
    document.querySelectorAll("select[data-bind]").forEach(bindSelect);
    document.querySelectorAll(".scrub[data-bind]").forEach(bindScrub);
  };
  const show = (model) => {
    bound.forEach((update) => update(model.state));
    document.querySelectorAll("[data-plural]").forEach((element) => {
      const text =
        model.state[element.dataset.plural] === 1
          ? element.dataset.one
          : (element.dataset.many ?? `${element.dataset.one}s`);
      if (element.textContent !== text) element.textContent = text;
    });
    const values = texts(model);
    document.querySelectorAll("[data-text], [data-value]").forEach((element) => {
      const text = values[element.dataset.text ?? element.dataset.value];
      if (element.textContent !== text) element.textContent = text;
    });
  };
  return { start, show, texts };
})();
