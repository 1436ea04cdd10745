/* Every number explains itself: its formula, the formula with the present values, and one sentence.
 *
 * Formulas are MathML, built here from names and numbers only, so nothing read from a file reaches innerHTML.
 */
"use strict";

foredraft.explain = (() => {
  const { format } = foredraft;
  const i = (name) => `<mi>${name}</mi>`;
  const n = (value) => `<mn>${value}</mn>`;
  const o = (sign) => `<mo>${sign}</mo>`;
  const row = (...parts) => `<mrow>${parts.join("")}</mrow>`;
  const over = (top, bottom) => `<mfrac>${row(top)}${row(bottom)}</mfrac>`;
  const power = (base, exponent) => `<msup>${base}${exponent}</msup>`;
  const sub = (base, index) => `<msub>${base}${index}</msub>`;
  const of = (name, ...args) => row(name, o("("), args.join(o(",")), o(")"));
  const sum = (from, to, what) => row(`<munderover>${o("∑")}${row(from)}${row(to)}</munderover>`, what);
  const word = (text) => `<mtext>${text}</mtext>`;

  const s = (index) => sub(i("s"), index);
  const time = (...args) => of(i("T"), ...args);
  const { two, times, count, milliseconds } = format;

  const survivalAt =
    (position) =>
    ({ state, survival, acceptances }) => {
      const factors = acceptances.slice(0, position).map((a) => n(two(a)));
      return {
        title: `Chance that draft ${position} counts`,
        formula: state.curve
          ? row(s(n(position)), o("="), Array.from({ length: position }, (_, k) => sub(i("a"), n(k + 1))).join(o("·")))
          : row(s(n(position)), o("="), power(i("a"), n(position))),
        values: row(factors.join(o("·")), o("="), n(survival[position - 1].toFixed(3))),
        text: "A draft counts only when it and all drafts before it are what the model would have written.",
      };
    };

  const treeSum = (total) =>
    row(n("1"), o("+"), sum(row(word("nodes")), "", word("chance that the node counts")), o("="), n(two(total)));

  const EXPLANATIONS = {
    tokens: ({ state, survival, tokens }) => {
      const shown = survival.slice(0, state.length).map((p) => n(two(p)));
      const terms = shown.length > 5 ? [...shown.slice(0, 4), word("…"), shown.at(-1)] : shown;
      return {
        title: "Tokens per cycle",
        formula: state.curve
          ? row(n("1"), o("+"), s(n("1")), o("+"), s(n("2")), o("+"), word("…"), o("+"), s(i("g")))
          : row(
              over(row(n("1"), o("−"), power(i("a"), row(i("g"), o("+"), n("1")))), row(n("1"), o("−"), i("a"))),
              o("="),
              n("1"),
              o("+"),
              i("a"),
              o("+"),
              power(i("a"), n("2")),
              o("+"),
              word("…"),
              o("+"),
              power(i("a"), i("g")),
            ),
        values: row([n("1"), ...terms].join(o("+")), o("="), n(two(tokens))),
        text: "The model’s own token, which every pass yields, and each draft weighted with the chance that it counts.",
      };
    },
    cost: ({ state, cost }) => ({
      title: "Cost per cycle",
      formula: row(n("1"), o("+"), i("g"), i("c")),
      values: row(n("1"), o("+"), n(state.length), o("·"), n(format.cost(state.draftCost)), o("="), n(two(cost))),
      text: "One pass of the model to check everything, and the drafts before it. In plain passes.",
    }),
    speedup: ({ tokens, cost, speedup }) => ({
      title: "Speedup",
      formula: over(word("tokens per cycle"), word("passes per cycle")),
      values: row(over(n(two(tokens)), n(two(cost))), o("="), n(two(speedup))),
      text: "Plain decoding writes one token per pass, so tokens per pass is how many times as fast drafting is.",
    }),
    survival1: survivalAt(1),
    survival2: survivalAt(2),
    survival3: survivalAt(3),
    bestLength: ({ bestLength, bestSpeedup, survival, state }) => ({
      title: "Best length",
      formula: row(
        word("draft one more while"),
        s(row(i("g"), o("+"), n("1"))),
        o("&gt;"),
        i("c"),
        o("·"),
        word("speedup"),
        o("("),
        i("g"),
        o(")"),
      ),
      values:
        bestLength < survival.length
          ? row(
              s(n(bestLength + 1)),
              o("="),
              n(survival[bestLength].toFixed(3)),
              o("≤"),
              n(format.cost(state.draftCost)),
              o("·"),
              n(two(bestSpeedup)),
            )
          : row(word("all 16 drafts considered are worth their cost")),
      text: "A draft is worth it when the tokens it brings per pass beat the rate the cycle already has.",
    }),
    bestSpeedup: ({ bestLength, bestSpeedup, survival, state }) => {
      const tokens = foredraft.economics.tokensFromSurvival(survival, bestLength);
      return {
        title: "Best speedup",
        formula: row(
          `<munder>${o("max")}${i("g")}</munder>`,
          over(
            row(n("1"), o("+"), s(n("1")), o("+"), word("…"), o("+"), s(i("g"))),
            row(n("1"), o("+"), i("g"), i("c")),
          ),
        ),
        values: row(
          over(n(two(tokens)), row(n("1"), o("+"), n(bestLength), o("·"), n(format.cost(state.draftCost)))),
          o("="),
          n(two(bestSpeedup)),
        ),
        text: "The highest point of the curve, over lengths from 0 to 16.",
      };
    },
    breakEvenAcceptance: ({ state, cost, breakEvenAcceptance }) => ({
      title: "Break-even acceptance",
      formula: row(
        i("a"),
        o("+"),
        power(i("a"), n("2")),
        o("+"),
        word("…"),
        o("+"),
        power(i("a"), i("g")),
        o("="),
        i("g"),
        i("c"),
      ),
      values:
        breakEvenAcceptance === null
          ? row(i("g"), i("c"), o("="), n(two(cost - 1)), o("&gt;"), i("g"), o("="), n(state.length))
          : row(i("a"), o("="), n(breakEvenAcceptance.toFixed(3))),
      text: "Where the drafts bring exactly what they cost. Below it, plain decoding is faster.",
    }),
    breakEvenCost: ({ state, tokens, breakEvenCost }) => ({
      title: "Break-even cost",
      formula: row(i("c"), o("="), over(row(word("tokens per cycle"), o("−"), n("1")), i("g"))),
      values:
        breakEvenCost === null
          ? row(word("no drafts, no cost"))
          : row(over(row(n(two(tokens)), o("−"), n("1")), n(state.length)), o("="), n(breakEvenCost.toFixed(3))),
      text: "What a draft brings on average: the mean height of the survival curve. Dearer drafts lose.",
    }),
    waterline: ({ state, bestSpeedup, waterline }) => ({
      title: "The waterline",
      formula: row(i("c"), o("·"), word("best speedup")),
      values: row(n(format.cost(state.draftCost)), o("·"), n(two(bestSpeedup)), o("="), n(waterline.toFixed(3))),
      text: "In the time of one draft the best cycle writes this many tokens anyway. A draft must bring more.",
    }),
    chainTokens: ({ chainTokens }) => ({
      title: "Tokens from a chain",
      formula: "",
      values: treeSum(chainTokens),
      text: "A chain is a tree with one branch: each guess hangs on the one before.",
    }),
    treeTokens: ({ treeTokens }) => ({
      title: "Tokens from a tree",
      formula: "",
      values: treeSum(treeTokens),
      text: "A node counts with the product of the probabilities on the way to it. Siblings exclude each other.",
    }),
    treeDepth: ({ treeDepth, state }) => ({
      title: "Draft steps of the tree",
      formula: word("longest branch"),
      values: row(n(treeDepth), word(" of "), n(state.nodes), word(" nodes")),
      text: "A drafter grows all branches of a level in one step, so a tree costs its depth, not its size.",
    }),
    chainDepth: ({ state }) => ({
      title: "Draft steps of the chain",
      formula: word("one per draft"),
      values: n(state.nodes),
      text: "Each draft of a chain needs the one before.",
    }),
    chainCeiling: ({ state, acceptances, chainCeiling }) => ({
      title: "The ceiling of a chain",
      formula: over(n("1"), row(n("1"), o("−"), i("a"))),
      values: state.curve
        ? row(n("1"), o("+"), s(n("1")), o("+"), s(n("2")), o("+"), word("…"), o("="), n(two(chainCeiling)))
        : row(
            over(n("1"), row(n("1"), o("−"), n(two(acceptances[0])))),
            o("="),
            n(Number.isFinite(chainCeiling) ? two(chainCeiling) : "∞"),
          ),
      text: "Sooner or later a guess is wrong, and an endless chain ends there.",
    }),
    rows: ({ state, load }) => ({
      title: "Rows of a pass",
      formula: row(i("B"), o("("), i("g"), o("+"), n("1"), o(")")),
      values: row(n(count(state.batch)), o("·"), n(state.length + 1), o("="), n(count(load.rows))),
      text: "Each request brings its last token and its drafts.",
    }),
    plainTime: ({ state, load }) => passTime("Time of a plain pass", state, state.batch, load.plainTime, load),
    verifyTime: ({ state, load }) => passTime("Time of a checking pass", state, load.rows, load.verifyTime, load),
    verifyRatio: ({ load }) => ({
      title: "A checking pass, in plain passes",
      formula: over(time(row(i("B"), o("("), i("g"), o("+"), n("1"), o(")"))), time(i("B"))),
      values: row(
        over(n(milliseconds(load.verifyTime)), n(milliseconds(load.plainTime))),
        o("="),
        n(two(load.verifyTime / load.plainTime)),
      ),
      text: "1 while compute is idle. The top of this page takes it to be 1.",
    }),
    payingBatch: ({ load }) => ({
      title: "Where a fixed length stops paying",
      formula: row(word("the last "), i("B"), word(" before speedup"), o("("), i("B"), o(")"), o("&lt;"), n("1")),
      values: n(load.payingBatch >= 512 ? "512, the most considered" : load.payingBatch),
      text: "At this context and draft length. Beyond it, drafting makes everyone wait longer.",
    }),
    loadSpeedup: ({ load }) => loadSpeedup("Speedup at this load", load.now),
    loadBestSpeedup: ({ load }) => loadSpeedup("Best speedup at this load", load.best),
    loadBestLength: ({ load }) => ({
      title: "Best length at this load",
      formula: row(`<munder>${o("max")}${i("g")}</munder>`, word(" speedup"), o("("), i("g"), o(")")),
      values: row(i("g"), o("="), n(load.best.length)),
      text: "Every length from 0 to 16 is tried, since a pass time can rise in steps. 0 means: don’t draft.",
    }),
  };

  const passTime = (title, state, rows, value, load) => ({
    title,
    formula: load.measured
      ? time(word("rows"), word("cached"), word("batch"))
      : row(
          of(word("max"), over(row(n("2"), i("P"), word(" rows")), i("F")), over(word("weight bytes"), i("W"))),
          o("+"),
          word("the same for attention"),
        ),
    values: row(
      time(n(count(rows)), n(count(state.batch * state.context)), n(count(state.batch))),
      o("="),
      n(milliseconds(value)),
    ),
    text: load.measured
      ? "Read off your measured passes, along straight lines between them."
      : "The longer of arithmetic (F operations a second) and memory traffic (W bytes a second), P being the parameters.",
  });
  const loadSpeedup = (title, point) => ({
    title,
    formula: over(
      word("tokens per cycle"),
      row(over(time(row(i("B"), o("("), i("g"), o("+"), n("1"), o(")"))), time(i("B"))), o("+"), i("g"), i("c")),
    ),
    values: row(over(n(two(point.tokens)), n(two(point.cost))), o("="), n(two(point.speedup))),
    text: "As at the top, but the checking pass costs what it really costs at this load.",
  });

  const math = (content) => (content ? `<math display="block">${content}</math>` : "");
  const start = (modelNow) => {
    const box = document.getElementById("explanation");
    document.addEventListener("click", (event) => {
      const button = event.target.closest("button.number");
      if (!button) return;
      const { title, formula, values, text } = EXPLANATIONS[button.dataset.value](modelNow());
      box.innerHTML = `<h3 id="explanation-title">${title}</h3>${math(formula)}${math(values)}<p>${text}</p>`;
      box.showPopover();
      const anchor = button.getBoundingClientRect();
      const margin = 12;
      const left = anchor.left + anchor.width / 2 - box.offsetWidth / 2;
      box.style.left = `${Math.max(margin, Math.min(left, document.documentElement.clientWidth - box.offsetWidth - margin))}px`;
      const below = anchor.bottom + 10 + box.offsetHeight < innerHeight - margin;
      box.style.top = `${Math.max(margin, below ? anchor.bottom + 10 : anchor.top - box.offsetHeight - 10)}px`;
      box.focus({ preventScroll: true });
    });
    document.querySelectorAll("button.number").forEach((button) => {
      button.setAttribute("aria-haspopup", "dialog");
      button.title = "Show the formula";
    });
  };
  return { start, EXPLANATIONS };
})();
