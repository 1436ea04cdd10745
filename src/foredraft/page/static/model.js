/* From the reader’s choices to every number on the page: `foredraft.model.of(state)`, pure and recomputed at each change. */
"use strict";

foredraft.model = (() => {
  const { economics, presets } = foredraft;

  // Conditional acceptance of each of the 16 drafts; a curve’s last value holds for the deeper ones.
  const conditional = ({ acceptance, curve }) =>
    Array.from({ length: economics.LONGEST }, (_, i) => (curve ? curve[Math.min(i, curve.length - 1)] : acceptance));

  // Levels of a tree: the best guess has the depth’s own acceptance, the next ones get their second chance.
  const levels = (state) =>
    Array.from({ length: 48 }, (_, depth) => {
      const best = conditional(state)[Math.min(depth, economics.LONGEST - 1)];
      return economics.rankProbabilities(best, state.secondChance, 6);
    });
  const chainOf = (state, nodes) => ({
    parents: Array.from({ length: nodes }, (_, i) => i - 1),
    probabilities: levels(state)
      .slice(0, nodes)
      .map((level) => level[0]),
  });
  const treeOf = (state, nodes) => economics.bestTree(levels(state), nodes);

  const chosen = (list, id) => list.find((item) => item.id === id);
  let measuredPasses = null; // {points, passTime, label} once a file with passes was dropped
  const setMeasuredPasses = (passes) => {
    measuredPasses = passes;
  };

  const passTimeOf = (state) => {
    if (measuredPasses) return measuredPasses.passTime;
    const weights = chosen(presets.weights, state.weights);
    const model = { ...chosen(presets.models, state.model), bytes_per_parameter: weights.bytes_per_parameter };
    return economics.roofline(chosen(presets.machines, state.machine), model);
  };

  const idle = (state) => {
    const acceptances = conditional(state);
    const survival = economics.survivalFromConditional(acceptances);
    const { length, draftCost } = state;
    const speedups = Array.from(
      { length: economics.LONGEST + 1 },
      (_, g) => economics.tokensFromSurvival(survival, g) / economics.costPerCycle(g, draftCost),
    );
    const best = Math.max(...speedups);
    const tokens = economics.tokensFromSurvival(survival, length);
    const cost = economics.costPerCycle(length, draftCost);
    return {
      acceptances,
      survival,
      speedups,
      tokens,
      cost,
      speedup: tokens / cost,
      verdict: economics.verdict(tokens / cost),
      bestLength: speedups.indexOf(best),
      bestSpeedup: best,
      waterline: draftCost * best,
      breakEvenAcceptance: economics.breakEvenAcceptance(length, draftCost),
      breakEvenCost: length ? (tokens - 1) / length : null,
    };
  };

  const branching = (state) => {
    const tree = treeOf(state, state.nodes);
    const chain = chainOf(state, state.nodes);
    const endless = conditional(state).at(-1);
    const reaches = economics.survivalFromConditional(conditional(state));
    const tail = endless < 1 ? (reaches.at(-1) * endless) / (1 - endless) : Infinity;
    return {
      tree,
      chain,
      treeTokens: economics.treeTokens(tree),
      chainTokens: economics.treeTokens(chain),
      treeDepth: economics.treeDepth(tree),
      chainCeiling: economics.tokensFromSurvival(reaches, economics.LONGEST) + tail,
    };
  };

  const underLoad = (state, survival) => {
    const { length, draftCost, batch, context } = state;
    const passTime = passTimeOf(state);
    const now = economics.cycle(survival, length, draftCost, passTime, context, batch);
    return {
      passTime,
      now,
      measured: measuredPasses,
      best: economics.bestCycle(survival, draftCost, passTime, context, batch),
      payingBatch: economics.largestPayingBatch(survival, length, draftCost, passTime, context, 512),
      rows: batch * (length + 1),
      plainTime: passTime(batch, batch * context, batch),
      verifyTime: passTime(batch * (length + 1), batch * context, batch),
    };
  };

  const of = (state) => {
    const now = idle(state);
    return { state, ...now, ...branching(state), load: underLoad(state, now.survival) };
  };

  const two = (value) => value.toFixed(2);

  // What the verdict means here, in words.
  const sentence = ({ state, tokens, cost, verdict, breakEvenAcceptance: needed }) => {
    const ending = verdict.startsWith("A loss") ? "" : ".";
    if (!state.length) return { verdict, ending, rest: "Without drafts a cycle is one plain pass and one token." };
    const exchange = `Each cycle writes ${two(tokens)} tokens in the time of ${two(cost)} plain passes.`;
    const whatItTakes =
      needed === null
        ? "Drafts this dear can’t pay, however good they are."
        : `A steady acceptance of ${two(needed)} would be needed to break even.`;
    const rest =
      {
        "Clear win": exchange,
        Modest: `${exchange} Worth having, though a busy machine can eat it up.`,
        "Break-even": `${exchange} What drafting gains it also costs.`,
      }[verdict] ?? `Each cycle takes ${two(cost)} passes and yields only ${two(tokens)} tokens. ${whatItTakes}`;
    return { verdict, ending: ending || ".", rest };
  };

  return { of, sentence, conditional, levels, chainOf, treeOf, passTimeOf, setMeasuredPasses };
})();
