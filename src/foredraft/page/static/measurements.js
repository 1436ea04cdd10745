/* Reading a dropped file. `foredraft.measurements.read(name, text)` returns what it holds, or throws one sentence.
 *
 * Known: {meta, cells: [...]} where a cell of kind "pass" is a measured pass {rows, cached, pass_ms, batch?}, one of kind
 * "draft" what a drafter costs {method, draft_length, draft_cost}, and a cell with a method is a benchmark {method, workload,
 * concurrency, speedup | output_throughput + plain_throughput, ...}; and the flat answer of `foredraft plan --json`. Cells of
 * other kinds are counted and left alone.
 */
"use strict";

foredraft.measurements = (() => {
  class Unreadable extends Error {}

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const shown = (value) => {
    const text = JSON.stringify(value) ?? "nothing";
    return text.length > 40 ? `${text.slice(0, 40)}…` : text;
  };

  const need = (cell, index, name, fits, wanted) => {
    if (!fits(cell[name]))
      throw new Unreadable(`cell ${index + 1} has ${name} ${shown(cell[name])} where ${wanted} is needed`);
    return cell[name];
  };
  const positive = (value) => isNumber(value) && value > 0;
  const natural = (value) => Number.isInteger(value) && value >= 0;
  const count = (value) => Number.isInteger(value) && value > 0;

  const readPass = (cell, index) => ({
    rows: need(cell, index, "rows", count, "a positive whole number"),
    cached: need({ cached: 0, ...cell }, index, "cached", natural, "a whole number"),
    batch: need({ batch: 1, ...cell }, index, "batch", count, "a positive whole number"),
    milliseconds: need(cell, index, "pass_ms", positive, "a positive number"),
  });

  // Null where the drafter found nothing to draft while it was measured.
  const readDraft = (cell, index) => {
    if (cell.draft_cost === null || cell.draft_cost === undefined) return null;
    return {
      method: String(cell.method),
      length: need(cell, index, "draft_length", count, "a positive whole number"),
      cost: need(cell, index, "draft_cost", positive, "a positive number"),
    };
  };

  const readBench = (cell, index) => {
    const speedup = isNumber(cell.speedup) ? cell.speedup : cell.output_throughput / cell.plain_throughput;
    const rates = cell.spec_decode_per_position_acceptance_rates;
    const falling = (values) =>
      values.every((rate, i) => isNumber(rate) && rate >= 0 && rate <= (i ? values[i - 1] : 1));
    return {
      method: String(cell.method),
      workload: String(cell.workload ?? "all"),
      concurrency: need({ concurrency: 1, ...cell }, index, "concurrency", count, "a positive whole number"),
      temperature: isNumber(cell.temperature) ? cell.temperature : null,
      speedup: need({ speedup }, index, "speedup", positive, "a positive number"),
      throughput: isNumber(cell.output_throughput) ? cell.output_throughput : null,
      tokens: isNumber(cell.acceptance_length) && cell.acceptance_length >= 1 ? cell.acceptance_length : null,
      rate: isNumber(cell.acceptance_rate) && cell.acceptance_rate > 0 ? cell.acceptance_rate : null,
      rates: Array.isArray(rates) && rates.length && falling(rates) ? rates : null,
      identical: cell.identical ?? null,
    };
  };

  const readCells = (data) => {
    const passes = [];
    const drafts = [];
    const bench = [];
    let skipped = 0;
    data.cells.forEach((cell, index) => {
      if (!isRecord(cell)) throw new Unreadable(`cell ${index + 1} is ${shown(cell)} where an object is needed`);
      if (cell.kind === "pass") passes.push(readPass(cell, index));
      else if (cell.kind === "draft") drafts.push(readDraft(cell, index));
      else if (cell.method !== undefined && (cell.kind === undefined || cell.kind === "bench"))
        bench.push(readBench(cell, index));
      else skipped += 1;
    });
    if (!passes.length && !bench.length) throw new Unreadable("it holds no benchmark and no measured pass");
    const meta = isRecord(data.meta) ? data.meta : {};
    return { meta, passes, drafts: drafts.filter((draft) => draft !== null), bench, skipped, plan: null };
  };

  const readPlan = (data) => {
    const fits =
      isNumber(data.acceptance) &&
      data.acceptance >= 0 &&
      data.acceptance <= 1 &&
      natural(data.draft_length) &&
      data.draft_length <= 16 &&
      isNumber(data.draft_cost) &&
      data.draft_cost >= 0 &&
      data.draft_cost <= 1;
    if (!fits)
      throw new Unreadable("its acceptance, draft_length or draft_cost is missing or outside what this page shows");
    return {
      meta: {},
      passes: [],
      drafts: [],
      bench: [],
      skipped: 0,
      plan: { acceptance: data.acceptance, length: data.draft_length, draftCost: data.draft_cost },
    };
  };

  const read = (name, text) => {
    try {
      const data = JSON.parse(text);
      if (isRecord(data) && Array.isArray(data.cells)) return readCells(data);
      if (isRecord(data) && "tokens_per_cycle" in data) return readPlan(data);
      throw new Unreadable("it has no “cells”; files written by foredraft bench and foredraft plan do");
    } catch (error) {
      const why =
        error instanceof SyntaxError ? "it isn’t valid JSON" : error instanceof Unreadable ? error.message : null;
      if (why === null) throw error;
      throw new Error(`“${name}” couldn’t be used: ${why}. Nothing was changed.`);
    }
  };

  // The numbers with which the arithmetic reproduces a benchmark cell; null where it doesn’t say enough. The survival
  // curve is the measured share of steps in which at least i drafts were accepted; without it, one steady acceptance.
  const asNumbers = (cell) => {
    if (!cell.tokens || !(cell.rate || cell.rates)) return null;
    const { acceptanceForTokens } = foredraft.economics;
    const length = Math.max(
      1,
      Math.min(16, cell.rates ? cell.rates.length : Math.round((cell.tokens - 1) / cell.rate)),
    );
    const tokens = Math.min(cell.tokens, length + 1);
    const draftCost = Math.max(0, Math.min(1, (tokens / cell.speedup - 1) / length));
    return {
      length,
      acceptance: Math.round(acceptanceForTokens(tokens, length) * 100) / 100,
      draftCost: Math.round(draftCost * 200) / 200,
      curve:
        cell.rates && cell.rates.slice(0, 16).map((rate, i, rates) => (i ? rates[i - 1] && rate / rates[i - 1] : rate)),
    };
  };

  return { read, asNumbers };
})();
