/* Everything comes together: at each change the model is computed once and every figure, number and sentence follows. */
"use strict";

(() => {
  const {
    state,
    model: models,
    controls,
    explain,
    chart,
    cycle,
    lengths,
    survival,
    trees,
    load,
    map,
    own,
    format,
  } = foredraft;
  const byId = (id) => document.getElementById(id);
  let model = models.of(state.get());

  const showVerdict = () => {
    const { verdict, ending, rest } = models.sentence(model);
    const tone = { "Clear win": "clear", Modest: "modest", "Break-even": "even" }[verdict] ?? "loss";
    const strong = Object.assign(document.createElement("strong"), { textContent: `${verdict}${ending}` });
    byId("verdict").replaceChildren(strong, ` ${rest}`);
    byId("verdict").dataset.tone = tone;
    byId("equation").dataset.tone = tone;
    byId("dock").dataset.tone = tone;
    byId("dock-verdict").textContent = verdict.split(":")[0];
  };

  const number = (name) => {
    const button = Object.assign(document.createElement("button"), {
      type: "button",
      className: "number",
      title: "Show the formula",
    });
    button.dataset.value = name;
    button.setAttribute("aria-haspopup", "dialog");
    return button;
  };
  const breakEvens = { acceptance: number("breakEvenAcceptance"), cost: number("breakEvenCost") };
  const showBreakEven = () => {
    const {
      breakEvenAcceptance,
      state: { length },
    } = model;
    const parts = !length
      ? ["there is nothing to gain or to lose."]
      : breakEvenAcceptance === null
        ? [
            "no acceptance is enough: a draft costs more than the token it could save. At this acceptance a draft may cost up to ",
            breakEvens.cost,
            " of a pass.",
          ]
        : [
            "any steady acceptance above ",
            breakEvens.acceptance,
            " pays; and at this acceptance, any cost below ",
            breakEvens.cost,
            " of a pass.",
          ];
    const kind = !length ? "none" : breakEvenAcceptance === null ? "never" : "both";
    const sentence = byId("break-even-sentence");
    if (sentence.dataset.kind === kind) return;
    sentence.dataset.kind = kind;
    sentence.replaceChildren(...parts);
  };

  // Said once the reader pauses, so that dragging isn’t a stream of announcements.
  let saying = 0;
  const announce = () => {
    clearTimeout(saying);
    saying = setTimeout(() => {
      byId("verdict-live").textContent = `${byId("verdict").textContent} ${format.times(model.speedup)}.`;
    }, 700);
  };

  const notice = byId("notice");
  const report = (faults) => {
    notice.replaceChildren(
      ...faults.map((text) =>
        Object.assign(document.createElement("p"), { textContent: text[0].toUpperCase() + text.slice(1) }),
      ),
    );
    if (!faults.length) return;
    const close = Object.assign(document.createElement("button"), {
      type: "button",
      className: "plain",
      textContent: "Dismiss",
    });
    close.addEventListener("click", () => notice.replaceChildren());
    notice.append(close);
  };

  const show = (now) => {
    model = models.of(now);
    showBreakEven();
    controls.show(model);
    showVerdict();
    [survival, trees, load, map, cycle].forEach((figure) => figure.update(model));
    chart.update(model);
    announce();
  };

  controls.start();
  explain.start(() => model);
  [cycle, lengths, survival, trees, load, map, own].forEach((figure) => figure.start());
  new IntersectionObserver(
    ([entry]) => {
      byId("dock").hidden = entry.isIntersecting; // what is still below the screen counts as visible, too
    },
    { rootMargin: "0px 0px 100000px" },
  ).observe(byId("dials"));
  addEventListener("resize", cycle.redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", cycle.redraw);
  state.subscribe(show);
  state.reportFaults(report);
  show(state.get());
})();
