/* What the reader has chosen, kept in the address.
 *
 * One flat object; every field has a key in the URL hash, so a link reproduces the page. A value that makes no sense is
 * replaced by its default and reported in one sentence. Subscribers run once per animation frame, however often it changed.
 */
"use strict";
globalThis.foredraft = globalThis.foredraft || {};

foredraft.state = (() => {
  const { presets } = foredraft;
  const number = (key, name, initial, low, high, step) => ({ key, name, initial, low, high, step });
  const choice = (key, name, initial, options) => ({ key, name, initial, options: options.map((o) => o.id) });

  const FIELDS = {
    acceptance: number("a", "acceptance", 0.75, 0, 1, 0.01),
    length: number("g", "draft length", 4, 0, 16, 1),
    draftCost: number("c", "draft cost", 0.15, 0, 1, 0.005),
    secondChance: number("s", "second chance", 0.5, 0, 1, 0.01),
    nodes: number("n", "nodes", 16, 1, 48, 1),
    batch: number("b", "batch", 64, 1, 512, 1),
    context: number("x", "context", 1024, 0, 131072, 1),
    machine: choice("m", "machine", "h200", presets.machines),
    model: choice("q", "model", "llama-3.1-8b", presets.models),
    weights: choice("w", "weights", "bf16", presets.weights),
  };
  const CURVE_KEY = "k"; // conditional acceptances, one per depth, when they are not all equal to `acceptance`

  const initial = () => ({
    ...Object.fromEntries(Object.entries(FIELDS).map(([name, field]) => [name, field.initial])),
    curve: null,
  });

  const readField = (field, text) => {
    if (field.options) {
      return field.options.includes(text) ? { value: text } : { fault: `one of ${field.options.join(", ")}` };
    }
    const value = text.trim() === "" ? NaN : Number(text);
    const whole = field.step === 1;
    if (value >= field.low && value <= field.high && (!whole || Number.isInteger(value))) return { value };
    return { fault: `a ${whole ? "whole " : ""}number from ${field.low} to ${field.high}` };
  };

  const readCurve = (text) => {
    const values = text.split(",").map((part) => (part.trim() === "" ? NaN : Number(part)));
    const fine = values.length <= 16 && values.every((value) => value >= 0 && value <= 1);
    return fine ? { value: values } : { fault: "up to 16 numbers from 0 to 1, separated by commas" };
  };

  // "#a=0.75&g=4" -> {state, faults}; what is absent keeps its default.
  const parse = (hash) => {
    const query = new URLSearchParams(hash.replace(/^#/, ""));
    const state = initial();
    const faults = [];
    const take = (name, field, read) => {
      if (!query.has(field.key)) return;
      const { value, fault } = read(query.get(field.key));
      if (fault)
        faults.push(`${field.name} “${query.get(field.key)}” in the address isn’t ${fault}, so it was ignored.`);
      else state[name] = value;
    };
    Object.entries(FIELDS).forEach(([name, field]) => take(name, field, (text) => readField(field, text)));
    take("curve", { key: CURVE_KEY, name: "the survival curve" }, readCurve);
    return { state, faults };
  };

  const short = (value) => String(Number(value.toFixed(4)));
  const format = (state) => {
    const query = Object.entries(FIELDS)
      .filter(([name, field], index) => index < 3 || state[name] !== field.initial)
      .map(([name, field]) => `${field.key}=${field.options ? state[name] : short(state[name])}`);
    if (state.curve) query.push(`${CURVE_KEY}=${state.curve.map(short).join(",")}`);
    return `#${query.join("&")}`;
  };

  const parsed = parse(location.hash);
  let current = parsed.state;
  const subscribers = [];
  let scheduled = false;
  let written = location.hash;

  const publish = () => {
    scheduled = false;
    subscribers.forEach((subscriber) => subscriber(current));
  };
  const schedule = () => {
    if (!scheduled) requestAnimationFrame(publish);
    scheduled = true;
  };

  // Browsers limit how often the address may change, so it follows when the reader pauses.
  let writing = 0;
  const writeAddress = () => {
    clearTimeout(writing);
    writing = setTimeout(() => {
      written = format(current);
      history.replaceState(null, "", written);
    }, 150);
  };

  // Setting the single acceptance number gives up the curve; a curve that comes along keeps it.
  const set = (change) => {
    const next = { ...current, ...change };
    if ("acceptance" in change && !("curve" in change)) next.curve = null;
    current = next;
    schedule();
    writeAddress();
  };

  const onFaults = [];
  addEventListener("hashchange", () => {
    if (location.hash === written) return;
    const again = parse(location.hash);
    current = again.state;
    onFaults.forEach((report) => report(again.faults));
    schedule();
  });

  return {
    FIELDS,
    parse,
    format,
    set,
    schedule,
    get: () => current,
    subscribe: (subscriber) => subscribers.push(subscriber),
    reportFaults: (report) => {
      onFaults.push(report);
      report(parsed.faults);
    },
  };
})();
