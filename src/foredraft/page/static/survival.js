/* The survival curve as bars to drag, standing in the water that a draft’s price makes; and the families to start from.
 *
 * Bar i is the chance that draft i still counts. Dragging it changes the acceptance of draft i given the ones before, so
 * deeper bars follow. Every bar is a slider to the keyboard and to assistive technology.
 */
"use strict";

foredraft.survival = (() => {
  const { state, format, economics, presets } = foredraft;
  const SVG = "http://www.w3.org/2000/svg";
  const holder = document.getElementById("survival");
  const HEIGHT = 300;
  const MARGIN = { top: 26, right: 8, bottom: 34, left: 44 };

  const element = (name, attributes = {}, parent = null) => {
    const created = document.createElementNS(SVG, name);
    Object.entries(attributes).forEach(([key, value]) => created.setAttribute(key, value));
    parent?.append(created);
    return created;
  };

  const svg = element(
    "svg",
    { class: "bars", role: "group", "aria-label": "Survival curve, one slider per draft" },
    holder,
  );
  const parts = {
    grid: element("g", {}, svg),
    bars: element("g", {}, svg),
    water: element("g", { "aria-hidden": "true" }, svg),
    handles: element("g", {}, svg),
  };
  let bars = [];
  let model = null;
  let geometry = null;

  const withAcceptance = (index, acceptance) => {
    const curve = foredraft.model.conditional(state.get());
    curve[index] = Math.min(1, Math.max(0, Math.round(acceptance * 100) / 100));
    while (curve.length > 1 && curve.at(-1) === curve.at(-2)) curve.pop();
    const survival = economics.survivalFromConditional(foredraft.model.conditional({ ...state.get(), curve }));
    const length = Math.max(1, state.get().length);
    const even = economics.acceptanceForTokens(economics.tokensFromSurvival(survival, length), length);
    state.set({ curve, acceptance: Math.round(even * 100) / 100 });
  };

  const makeBar = (index) => {
    const bar = element("rect", { class: "bar", rx: 3 }, parts.bars);
    const handle = element(
      "g",
      {
        class: "handle",
        role: "slider",
        tabindex: 0,
        "aria-valuemin": 0,
        "aria-valuemax": 100,
        "aria-orientation": "vertical",
        "aria-label": `Acceptance of draft ${index + 1}, given those before it`,
      },
      parts.handles,
    );
    element("rect", { class: "grab" }, handle);
    element("rect", { class: "grip", rx: 3, height: 6 }, handle);
    const value = element("text", { class: "value", "text-anchor": "middle", "aria-hidden": "true" }, handle);
    const name = element("text", { class: "tick", "text-anchor": "middle", "aria-hidden": "true" }, parts.grid);
    name.textContent = index + 1;
    const before = () => (index ? model.survival[index - 1] : 1);
    const follow = (event) => {
      const { y } = svg.getBoundingClientRect();
      const target = 1 - (event.clientY - y - MARGIN.top) / geometry.height;
      if (before() > 0) withAcceptance(index, target / before());
    };
    handle.addEventListener("pointerdown", (event) => {
      handle.setPointerCapture(event.pointerId);
      handle.classList.add("dragging");
      handle.focus({ preventScroll: true });
      follow(event);
      event.preventDefault();
    });
    handle.addEventListener("pointermove", (event) => {
      if (handle.classList.contains("dragging")) follow(event);
    });
    ["pointerup", "pointercancel"].forEach((kind) =>
      handle.addEventListener(kind, () => handle.classList.remove("dragging")),
    );
    const STEPS = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1 };
    handle.addEventListener("keydown", (event) => {
      if (event.key in STEPS) withAcceptance(index, model.acceptances[index] + STEPS[event.key]);
      else if (event.key === "Home") withAcceptance(index, 0);
      else if (event.key === "End") withAcceptance(index, 1);
      else return;
      event.preventDefault();
    });
    return { bar, handle, value, name };
  };

  const build = () => {
    const width = holder.clientWidth;
    if (!width) return;
    const count = Math.max(6, Math.min(economics.LONGEST, Math.floor((width - MARGIN.left) / 56)));
    geometry = {
      width,
      count,
      height: HEIGHT - MARGIN.top - MARGIN.bottom,
      step: (width - MARGIN.left - MARGIN.right) / count,
    };
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.setAttribute("height", HEIGHT);
    Object.values(parts).forEach((part) => part.replaceChildren());
    [0, 0.25, 0.5, 0.75, 1].forEach((level) => {
      const y = MARGIN.top + geometry.height * (1 - level);
      element("line", { class: "gridline", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }, parts.grid);
      element(
        "text",
        { class: "tick", x: MARGIN.left - 8, y: y + 4, "text-anchor": "end", "data-level": level },
        parts.grid,
      ).textContent = format.percent(level);
    });
    bars = Array.from({ length: count }, (_, index) => makeBar(index));
    parts.rect = element("rect", { class: "water" }, parts.water);
    parts.line = element("line", { class: "waterline" }, parts.water);
    parts.label = element("text", { class: "waterlabel", "text-anchor": "end" }, parts.water);
    parts.tick = element("text", { class: "watertick", "text-anchor": "end", x: MARGIN.left - 8 }, parts.water);
    parts.even = element("path", { class: "even" }, parts.water);
    if (model) update(model);
  };

  const update = (next) => {
    model = next;
    if (!geometry) return;
    const { step, height, width, count } = geometry;
    const y = (level) => MARGIN.top + height * (1 - level);
    bars.forEach(({ bar, handle, value, name }, index) => {
      const left = MARGIN.left + index * step + step * 0.14;
      const wide = step * 0.72;
      const chance = model.survival[index];
      const drawn = { x: left, y: y(chance), width: wide, height: Math.max(0.5, height * chance) };
      Object.entries(drawn).forEach(([key, number]) => bar.setAttribute(key, number));
      bar.classList.toggle("used", index < model.state.length);
      bar.classList.toggle("drowned", chance <= model.waterline);
      const [grab, grip] = handle.children;
      Object.entries({ x: left, y: y(chance) - 22, width: wide, height: 44 }).forEach(([key, number]) =>
        grab.setAttribute(key, number),
      );
      Object.entries({ x: left, y: y(chance) - 3, width: wide }).forEach(([key, number]) =>
        grip.setAttribute(key, number),
      );
      value.setAttribute("x", left + wide / 2);
      const besideLine = Math.abs(y(chance) - 13 - y(model.waterline)) < 12; // lift the figure off the waterline
      value.setAttribute("y", besideLine ? y(model.waterline) - 6 : y(chance) - 9);
      value.textContent = format.percent(chance);
      value.classList.toggle("drowned-value", chance < model.waterline * 0.9);
      name.setAttribute("x", left + wide / 2);
      name.setAttribute("y", HEIGHT - 12);
      handle.setAttribute("aria-valuenow", Math.round(model.acceptances[index] * 100));
      handle.setAttribute(
        "aria-valuetext",
        `${format.percent(model.acceptances[index])}; counts ${format.percent(chance)} of the time`,
      );
    });
    const line = Math.min(1, model.waterline);
    Object.entries({
      x: MARGIN.left,
      y: y(line),
      width: width - MARGIN.left - MARGIN.right,
      height: height * line,
    }).forEach(([key, number]) => parts.rect.setAttribute(key, number));
    Object.entries({ x1: MARGIN.left, x2: width - MARGIN.right, y1: y(line), y2: y(line) }).forEach(([key, number]) =>
      parts.line.setAttribute(key, number),
    );
    parts.label.setAttribute("x", width - MARGIN.right - 4);
    parts.label.setAttribute("y", y(line) - 7);
    parts.tick.setAttribute("y", y(line) + 4);
    parts.tick.textContent = width < 560 ? format.percent(model.waterline) : "";
    parts.grid.querySelectorAll("[data-level]").forEach((tick) => {
      const covered = parts.tick.textContent && Math.abs(y(tick.dataset.level) - y(line)) < 14;
      tick.setAttribute("visibility", covered ? "hidden" : "visible");
    });
    parts.label.textContent =
      width < 560
        ? ""
        : model.waterline > 1
          ? `the price: ${format.two(model.waterline)}, above everything`
          : `the price: ${format.percent(model.waterline)}`;
    const even = economics.survivalCurve(model.state.acceptance, count);
    parts.even.setAttribute(
      "d",
      model.state.curve
        ? even.map((chance, i) => `M${MARGIN.left + i * step + step * 0.1} ${y(chance)}h${step * 0.8}`).join("")
        : "",
    );
    document.getElementById("flatten").hidden = !model.state.curve;
    showPreset(model.state);
  };

  const sameAs = (now) =>
    presets.families.find(
      (family) => now.curve && family.acceptance.join() === now.curve.join() && family.draft_cost === now.draftCost,
    );
  const note = document.getElementById("preset-note");
  const showPreset = (now) => {
    const family = sameAs(now);
    document.querySelectorAll("#presets button").forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.id === family?.id));
    });
    const origin = presets.illustrative ? `Illustrative: ${presets.source}.` : `Measured: ${presets.source}.`;
    const text = family ? `${family.text} ${origin}` : origin;
    if (note.textContent !== text) note.textContent = text;
  };

  const usePreset = (family) => {
    const curve = [...family.acceptance];
    const survival = economics.survivalFromConditional(foredraft.model.conditional({ acceptance: 0, curve }));
    const even = economics.acceptanceForTokens(economics.tokensFromSurvival(survival, family.length), family.length);
    state.set({
      curve,
      acceptance: Math.round(even * 100) / 100,
      draftCost: family.draft_cost,
      length: family.length,
      secondChance: family.second_chance,
    });
  };

  const start = () => {
    const group = document.getElementById("presets");
    presets.families.forEach((family) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: family.name });
      button.dataset.id = family.id;
      button.addEventListener("click", () => usePreset(family));
      group.append(button);
    });
    document
      .getElementById("flatten")
      .addEventListener("click", () => state.set({ acceptance: state.get().acceptance }));
    new ResizeObserver(() => {
      if (holder.clientWidth !== geometry?.width) build();
    }).observe(holder);
  };
  return { start, update, element };
})();
