/* The animated cycle: drafts appear in the text, one pass checks them all, and the first wrong one ends the luck.
 *
 * A small simulation with its own clock, in plain passes. Phases: draft -> verify -> resolve -> (commit) draft ...
 * The clock stands still while a cycle resolves, so that the lanes below stay a fair race. `foredraft.cycle.history`
 * is what the lanes draw. Random numbers are seeded: the same page shows the same luck.
 */
"use strict";

foredraft.cycle = (() => {
  const { words } = foredraft;
  const SLOW = { secondsPerPass: 1.5, resolve: 1.3, preview: 0.7 };
  const FAST = { secondsPerPass: 0.22, resolve: 0.16, preview: 0.3 };
  const KEPT_WORDS = 140;
  const OPENING_WORDS = 38;

  const stillness = matchMedia("(prefers-reduced-motion: reduce)");
  const history = { time: 0, cycles: [], tokens: 0 };
  let pace = SLOW;
  let playing = !stillness.matches;
  let stepping = false;
  let onScreen = true;
  let model = null;
  let position = 0; // index into `words` of the next token
  let phase = "resolved";
  let elapsed = 0; // seconds within resolve or preview, passes within draft or verify
  let now = null; // the running cycle

  let seed = 20221130;
  const random = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  const stage = document.querySelector("#cycle .stage");
  const written = stage.querySelector(".written");
  const caption = stage.querySelector(".phase");

  const wordAt = (index) => words[index % words.length];
  const span = (className, text) => Object.assign(document.createElement("span"), { className, textContent: text });
  const append = (element) => written.append(element, " ");

  const makeChip = (index, accepted) => {
    const chip = span("chip", "");
    const { word, guess } = wordAt(position + index);
    chip.append(span("token", accepted ? word : guess));
    const chance = model.survival[index];
    chip.append(span("chance", `${Math.round(chance * 100)}%`));
    chip.style.setProperty("--chance", chance.toFixed(3));
    return chip;
  };

  const begin = () => {
    const { length, draftCost } = model.state;
    let accepted = 0;
    while (accepted < length && random() < model.acceptances[accepted]) accepted += 1;
    now = { start: history.time, length, draftCost, accepted, tokens: accepted + 1, end: null, chips: [] };
    now.root = written.querySelector(":scope > .word:last-of-type");
    now.root?.classList.add("root");
    for (let index = 0; index < length; index += 1) {
      const chip = makeChip(index, index < accepted);
      now.chips.push(chip);
      append(chip);
    }
    history.cycles.push(now);
    if (history.cycles.length > 60) history.cycles.shift();
    phase = "draft";
    elapsed = 0;
  };

  const setScan = (fraction) => stage.style.setProperty("--scan", fraction.toFixed(4));
  const s = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

  const outcome = () => {
    const { accepted, length, tokens } = now;
    if (!length) return "No drafts: one pass, one token";
    const drafts =
      accepted === length
        ? length === 1
          ? "The draft is accepted"
          : `All ${length} drafts accepted`
        : `${accepted} of ${s(length, "draft")} accepted`;
    return `${drafts}: ${s(tokens, "token")} from one pass`;
  };

  const resolve = () => {
    now.end = history.time;
    history.tokens += now.tokens;
    const { chips, accepted } = now;
    chips.forEach((chip, index) => {
      chip.style.setProperty("--order", index);
      chip.classList.add("shown", index < accepted ? "accepted" : index === accepted ? "rejected" : "dead");
    });
    now.own = span("chip shown target", "");
    now.own.append(span("token", wordAt(position + accepted).word), span("chance", "its own"));
    now.own.style.setProperty("--order", accepted);
    const before = chips[accepted]; // the rejected draft, if any
    if (before) before.after(" ", now.own);
    else append(now.own);
    setScan(0);
    caption.textContent = outcome();
    phase = "resolve";
    elapsed = 0;
  };

  const commit = () => {
    if (!now) return;
    now.root?.classList.remove("root");
    const { chips, accepted, own } = now;
    chips
      .slice(0, accepted)
      .forEach((chip, index) => chip.replaceWith(span("word free", wordAt(position + index).word)));
    own.replaceWith(span("word own", wordAt(position + accepted).word));
    chips.slice(accepted).forEach((chip) => chip.remove());
    position += now.tokens;
    while (written.childElementCount > KEPT_WORDS) written.firstElementChild.remove();
    now = null;
  };

  // Give up the running cycle and the score: the rules have changed.
  const restart = () => {
    now?.root?.classList.remove("root");
    now?.chips.forEach((chip) => chip.remove());
    now?.own?.remove();
    Object.assign(history, { time: 0, cycles: [], tokens: 0 });
    begin();
    now.chips.forEach((chip) => chip.classList.add("shown"));
    setScan(0);
  };

  const advance = (seconds) => {
    if (phase === "preview") {
      elapsed += seconds;
      if (elapsed < pace.preview) return;
      history.time = now.length * now.draftCost;
      phase = "verify";
      elapsed = 0;
    } else if (phase === "draft") {
      const passes = seconds / pace.secondsPerPass;
      const drafting = now.length * now.draftCost;
      const left = drafting - elapsed;
      elapsed += passes;
      history.time += Math.min(passes, left);
      const shown = now.draftCost ? Math.floor(elapsed / now.draftCost) + 1 : now.length;
      now.chips.forEach((chip, index) => chip.classList.toggle("shown", index < shown));
      caption.textContent = now.length ? `Drafting ${Math.min(shown, now.length)} of ${now.length}` : "";
      if (elapsed < drafting) return;
      now.chips.forEach((chip) => chip.classList.add("shown"));
      phase = "verify";
      elapsed = 0;
    } else if (phase === "verify") {
      const passes = Math.min(seconds / pace.secondsPerPass, 1 - elapsed);
      elapsed += passes;
      history.time += passes;
      setScan(elapsed);
      caption.textContent = now.length
        ? `One pass checks ${now.length === 1 ? "the draft" : `all ${now.length} drafts at once`}`
        : "One pass, one token";
      if (elapsed >= 1 - 1e-9) resolve();
    } else if (phase === "resolve") {
      elapsed += seconds;
      if (elapsed < pace.resolve) return;
      phase = "resolved";
      if (stepping) {
        stepping = false;
        announce();
      }
    } else if (playing || stepping) {
      commit();
      begin();
    }
  };

  const announce = () => {
    document.getElementById("cycle-outcome").textContent =
      `${outcome()}, in ${(now.length * now.draftCost + 1).toFixed(2)} passes.`;
  };

  // Straight to the end of a cycle, without motion.
  const jump = () => {
    now.chips.forEach((chip) => chip.classList.add("shown"));
    history.time = now.start + now.length * now.draftCost + 1;
    resolve();
    phase = "resolved";
    drawLanes();
  };

  const tally = document.getElementById("tally");
  const drawLanes = () => {
    foredraft.lanes.draw(history, { phase, elapsed, running: now });
    const plain = Math.floor(history.time + 1e-9);
    tally.textContent =
      history.time >= 1
        ? `${history.time.toFixed(1)} passes in: plain ${s(plain, "token")}, with drafts ${history.tokens}`
        : "";
  };

  let before = 0;
  let looping = false;
  const loop = (stamp) => {
    const seconds = Math.min(0.05, (stamp - before) / 1000);
    before = stamp;
    advance(seconds);
    drawLanes();
    looping = onScreen && (playing || stepping || phase === "resolve");
    if (looping) requestAnimationFrame(loop);
  };
  const wake = () => {
    if (looping || !model || !onScreen || !(playing || stepping)) return;
    looping = true;
    before = performance.now();
    requestAnimationFrame(loop);
  };

  const playButton = document.getElementById("play");
  const showPlaying = () => {
    playButton.textContent = playing ? "Pause" : "Play";
    playButton.setAttribute("aria-pressed", String(playing));
  };
  const play = (on) => {
    playing = on;
    showPlaying();
    wake();
  };

  const start = () => {
    showPlaying();
    playButton.addEventListener("click", () => play(!playing));
    document.getElementById("step").addEventListener("click", () => {
      play(false);
      if (stillness.matches) {
        commit();
        begin();
        jump();
        announce();
      } else {
        stepping = true;
        wake();
      }
    });
    document.getElementById("fast").addEventListener("click", ({ currentTarget: button }) => {
      pace = pace === SLOW ? FAST : SLOW;
      button.setAttribute("aria-pressed", String(pace === FAST));
      stage.classList.toggle("fast", pace === FAST);
    });
    new IntersectionObserver(([entry]) => {
      onScreen = entry.isIntersecting;
      wake();
    }).observe(stage);
    while (position < OPENING_WORDS) {
      append(span("word", wordAt(position).word));
      position += 1;
    }
  };

  const rules = ({ state, acceptances }) => JSON.stringify([acceptances, state.length, state.draftCost]);
  const update = (next) => {
    const changed = !model || rules(model) !== rules(next);
    const first = !model;
    model = next;
    if (!changed) return;
    if (phase === "resolved" && now) commit();
    restart();
    if (!playing && !stepping) jump();
    else if (!first) {
      phase = "preview";
      elapsed = 0;
      caption.textContent = "";
    } else now.chips.forEach((chip) => chip.classList.remove("shown"));
    drawLanes();
    wake();
  };

  return { start, update, redraw: drawLanes };
})();
