/* The arithmetic of speculation, formula for formula the same as the Python package `foredraft.economics`.
 *
 * Plain functions of numbers and arrays; no document, no state. Both sides are held to the same test vectors.
 * Time is counted in plain passes unless a name says milliseconds. Functions assume checked input.
 */
"use strict";
globalThis.foredraft = globalThis.foredraft || {};

foredraft.economics = (() => {
  const LONGEST = 16;
  const VERDICTS = [
    { from: 1.5, word: "Clear win" },
    { from: 1.05, word: "Modest" },
    { from: 0.95, word: "Break-even" },
    { from: 0, word: "A loss: paying for compute to go slower" },
  ];

  const survivalFromConditional = (acceptances) => {
    let product = 1;
    return acceptances.map((acceptance) => (product *= acceptance));
  };
  const survivalCurve = (acceptance, length) => survivalFromConditional(Array(length).fill(acceptance));

  const tokensFromSurvival = (survival, length) => 1 + survival.slice(0, length).reduce((sum, p) => sum + p, 0);

  // a(1 + a(1 + ...)) rather than (1 - a^(g+1)) / (1 - a): no special case at a = 1.
  const tokensPerCycle = (acceptance, length) => {
    let drafts = 0;
    for (let i = 0; i < length; i += 1) drafts = acceptance * (1 + drafts);
    return 1 + drafts;
  };

  const costPerCycle = (length, draftCost) => 1 + length * draftCost;
  const speedup = (acceptance, length, draftCost) =>
    tokensPerCycle(acceptance, length) / costPerCycle(length, draftCost);
  const marginalTokens = (acceptance, position) => survivalCurve(acceptance, position)[position - 1];

  const bestLength = (acceptance, draftCost, longest = LONGEST) => {
    for (let length = 0; length < longest; length += 1) {
      if (!(marginalTokens(acceptance, length + 1) > draftCost * speedup(acceptance, length, draftCost))) return length;
    }
    return longest;
  };

  // The survival a draft needs to be worth its cost: the drafts above this line are the best chain.
  const waterline = (survival, draftCost) => {
    let best = 1;
    for (let length = 1; length <= survival.length; length += 1) {
      best = Math.max(best, tokensFromSurvival(survival, length) / costPerCycle(length, draftCost));
    }
    return draftCost * best;
  };

  const acceptanceForTokens = (tokens, length) => {
    if (tokens <= 1) return 0;
    if (tokens > length + 1) return null;
    let low = 0;
    let high = 1;
    for (;;) {
      const middle = (low + high) / 2;
      if (!(low < middle && middle < high)) return high;
      if (tokensPerCycle(middle, length) < tokens) low = middle;
      else high = middle;
    }
  };
  const breakEvenAcceptance = (length, draftCost) => acceptanceForTokens(costPerCycle(length, draftCost), length);
  const breakEvenCost = (acceptance, length) => (tokensPerCycle(acceptance, length) - 1) / length;

  const verdict = (ratio) => VERDICTS.find((level) => ratio >= level.from).word;

  /* The general form: passTime(rows, cached, batch) in milliseconds. */

  const cycle = (survival, length, draftCost, passTime, context, batch) => {
    const cached = batch * context;
    const plain = passTime(batch, cached, batch);
    const milliseconds = passTime(batch * (length + 1), cached, batch) + length * (draftCost * plain);
    const tokens = tokensFromSurvival(survival, length);
    return { length, tokens, cost: milliseconds / plain, speedup: (tokens * plain) / milliseconds, milliseconds };
  };

  const bestCycle = (survival, draftCost, passTime, context, batch, longest = LONGEST) => {
    let best = null;
    for (let length = 0; length <= longest; length += 1) {
      const point = cycle(survival, length, draftCost, passTime, context, batch);
      if (best === null || point.speedup > best.speedup) best = point;
    }
    return best;
  };

  const largestPayingBatch = (survival, length, draftCost, passTime, context, largest = 1024) => {
    for (let batch = 1; batch <= largest; batch += 1) {
      if (cycle(survival, length, draftCost, passTime, context, batch).speedup < 1) return batch - 1;
    }
    return largest;
  };

  const roofline = (machine, model) => {
    const weightBytes = model.parameters * model.bytes_per_parameter;
    const cacheBytesPerToken = 2 * model.layers * model.key_value_width * model.cache_bytes;
    return (rows, cached, batch) => {
      const linear = Math.max(
        (2 * model.parameters * rows) / machine.flops_per_second,
        weightBytes / machine.bytes_per_second,
      );
      const attention = Math.max(
        (4 * model.layers * model.query_width * rows * (cached / batch)) / machine.flops_per_second,
        (cacheBytesPerToken * cached) / machine.bytes_per_second,
      );
      return 1000 * (linear + attention);
    };
  };

  const along = (curve, x) => {
    if (x <= curve[0][0] || curve.length === 1) return curve[0][1];
    const found = curve.findIndex(([position]) => position >= x);
    const right = found < 0 ? curve.length - 1 : found;
    const [[x0, y0], [x1, y1]] = [curve[right - 1], curve[right]];
    const slope = (y1 - y0) / (x1 - x0);
    return x <= x1 ? y0 + slope * (x - x0) : y1 + Math.max(slope, 0) * (x - x1);
  };
  const median = (values) => {
    const sorted = [...values].sort((a, b) => a - b);
    const half = sorted.length / 2;
    return sorted.length % 2 ? sorted[Math.floor(half)] : (sorted[half - 1] + sorted[half]) / 2;
  };
  const group = (points, key) => {
    const groups = new Map();
    points.forEach((point) => groups.set(key(point), [...(groups.get(key(point)) ?? []), point]));
    return [...groups].sort(([a], [b]) => a - b);
  };

  // T through measured points {rows, cached, batch, milliseconds}: straight lines in rows, then cached, then batch.
  const measuredPasses = (points) => {
    const curves = group(points, (p) => p.batch).map(([batch, same]) => [
      batch,
      group(same, (p) => p.cached).map(([cached, row]) => [
        cached,
        group(row, (p) => p.rows).map(([rows, all]) => [rows, median(all.map((p) => p.milliseconds))]),
      ]),
    ]);
    return (rows, cached, batch) =>
      along(
        curves.map(([b, byCached]) => [
          b,
          along(
            byCached.map(([c, curve]) => [c, along(curve, rows)]),
            cached,
          ),
        ]),
        batch,
      );
  };

  /* Trees: {parents, probabilities}, parents before children, -1 = the last committed token. */

  const reach = (tree) => {
    const reaches = [];
    tree.parents.forEach((parent, node) => {
      reaches.push(parent < 0 ? tree.probabilities[node] : reaches[parent] * tree.probabilities[node]);
    });
    return reaches;
  };
  const treeTokens = (tree) => 1 + reach(tree).reduce((sum, p) => sum + p, 0);
  const treeDepth = (tree) => {
    const depths = [];
    tree.parents.forEach((parent) => depths.push(parent < 0 ? 1 : depths[parent] + 1));
    return Math.max(0, ...depths);
  };

  const rankProbabilities = (acceptance, secondChance, width) => {
    const ranks = width ? [acceptance] : [];
    let missing = 1 - acceptance;
    while (ranks.length < width) {
      ranks.push(Math.min(missing * secondChance, ranks[ranks.length - 1]));
      missing -= ranks[ranks.length - 1];
    }
    return ranks;
  };

  // Always add the node with the largest reach; of equals the one that could be added earlier.
  const bestTree = (levels, nodes) => {
    const tree = { parents: [], probabilities: [] };
    const waiting = [];
    const offer = (parent, depth, rank, above) => {
      const probability = levels[depth]?.[rank];
      if (probability !== undefined) waiting.push({ parent, depth, rank, above, reach: above * probability });
    };
    offer(-1, 0, 0, 1);
    while (waiting.length && tree.parents.length < nodes) {
      let next = 0;
      for (let i = 1; i < waiting.length; i += 1) if (waiting[i].reach > waiting[next].reach) next = i;
      const [{ parent, depth, rank, above, reach: through }] = waiting.splice(next, 1);
      const node = tree.parents.length;
      tree.parents.push(parent);
      tree.probabilities.push(levels[depth][rank]);
      offer(parent, depth, rank + 1, above);
      offer(node, depth + 1, 0, through);
    }
    return tree;
  };

  /* A mixed batch. */

  const goodput = (survivals, lengths, milliseconds) =>
    (1000 * survivals.reduce((sum, curve, row) => sum + tokensFromSurvival(curve, lengths[row]), 0)) / milliseconds;

  return {
    LONGEST,
    VERDICTS,
    survivalCurve,
    survivalFromConditional,
    tokensFromSurvival,
    tokensPerCycle,
    costPerCycle,
    speedup,
    marginalTokens,
    bestLength,
    waterline,
    acceptanceForTokens,
    breakEvenAcceptance,
    breakEvenCost,
    verdict,
    cycle,
    bestCycle,
    largestPayingBatch,
    roofline,
    measuredPasses,
    reach,
    treeTokens,
    treeDepth,
    rankProbabilities,
    bestTree,
    goodput,
  };
})();
