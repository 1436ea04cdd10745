/* The same number of guesses as a chain and as a tree, drawn; and how each grows. */
"use strict";

foredraft.trees = (() => {
  const { economics, format, chart, survival } = foredraft;
  const holder = document.getElementById("trees");
  const svg = survival.element("svg", { class: "tree", role: "img" }, holder);
  const SIZES = Array.from({ length: 48 }, (_, i) => i + 1);
  const LABEL = 20;

  // Depth gives x; leaves are laid out one under the other and parents sit level with their best child.
  const layout = (tree) => {
    const children = tree.parents.map(() => []);
    const roots = [];
    tree.parents.forEach((parent, node) => (parent < 0 ? roots : children[parent]).push(node));
    const place = tree.parents.map(() => null);
    let line = 0;
    const visit = (node, depth) => {
      place[node] = { depth, line };
      children[node].forEach((child, index) => {
        if (index) line += 1;
        visit(child, depth + 1);
      });
    };
    roots.forEach((node, index) => {
      if (index) line += 1;
      visit(node, 1);
    });
    return { place, lines: line + 1 };
  };

  const drawOne = (tree, top, title, scale) => {
    const { place, lines } = layout(tree);
    const reach = economics.reach(tree);
    const x = (depth) => scale.left + depth * scale.step;
    const y = (line) => top + LABEL + 16 + line * scale.line;
    const group = survival.element("g", {}, svg);
    survival.element("text", { class: "tree-title", x: 0, y: top + 12 }, group).textContent = title;
    tree.parents.forEach((parent, node) => {
      const from = parent < 0 ? { depth: 0, line: 0 } : place[parent];
      const to = place[node];
      const [x0, y0, x1, y1] = [x(from.depth), y(from.line), x(to.depth), y(to.line)];
      const bend = x1 - scale.step * 0.5;
      survival.element("path", { class: "edge", d: y0 === y1 ? `M${x0} ${y0}H${x1}` : `M${x0} ${y0}C${bend} ${y0} ${x0 + scale.step * 0.25} ${y1} ${x1} ${y1}`,
        style: `opacity:${0.25 + 0.75 * reach[node]}` }, group);
    });
    survival.element("rect", { class: "node-root", x: x(0) - 8, y: y(0) - 8, width: 16, height: 16, rx: 4 }, group);
    tree.parents.forEach((_, node) => {
      const { depth, line } = place[node];
      survival.element("circle", { class: "node-base", cx: x(depth), cy: y(line), r: scale.radius }, group);
      const circle = survival.element("circle", { class: "node", cx: x(depth), cy: y(line), r: scale.radius, style: `fill-opacity:${0.06 + 0.94 * reach[node]}` }, group);
      survival.element("title", {}, circle).textContent = `counts ${format.percent(reach[node])} of the time`;
      if (scale.labels) {
        survival.element("text", { class: "node-label", x: x(depth), y: y(line) + scale.radius + 12, "text-anchor": "middle" }, group).textContent = format.percent(reach[node]);
      }
    });
    return LABEL + 16 + lines * scale.line;
  };

  const draw = (model) => {
    const width = holder.clientWidth;
    if (!width) return;
    svg.replaceChildren();
    const depth = Math.max(model.state.nodes, model.treeDepth);
    const step = Math.min(72, (width - 34) / depth);
    const radius = Math.max(3.5, Math.min(9, step * 0.3));
    const labels = step >= 40;
    const scale = { left: 12, step, radius, labels, line: radius * 2 + (labels ? 22 : 8) };
    const chainHeight = drawOne(model.chain, 0, `${model.state.nodes === 1 ? "One guess" : `${model.state.nodes} guesses`} as a chain: ${format.two(model.chainTokens)} tokens per cycle`, scale);
    const treeHeight = drawOne(model.tree, chainHeight + 14, `The same as a tree: ${format.two(model.treeTokens)} tokens per cycle`, scale);
    svg.setAttribute("viewBox", `0 0 ${width} ${chainHeight + treeHeight + 16}`);
    svg.setAttribute("height", chainHeight + treeHeight + 16);
    svg.setAttribute("aria-label", `${model.state.nodes} guesses as a chain of depth ${model.state.nodes}, and as a tree of depth ${model.treeDepth}. `
      + `The chain yields ${format.two(model.chainTokens)} tokens per cycle, the tree ${format.two(model.treeTokens)}.`);
  };

  // The best tree of n nodes is the first n of the best tree of 48: one tree gives the whole curve.
  const growth = (model) => {
    const running = (tree) => {
      let total = 1;
      return economics.reach(tree).map((chance) => (total += chance));
    };
    return { chain: running(foredraft.model.chainOf(model.state, 48)), tree: running(foredraft.model.treeOf(model.state, 48)) };
  };

  const describe = (model) => {
    const { chain, tree } = growth(model);
    const { nodes } = model.state;
    const top = Math.max(2, Math.ceil(Math.max(...tree, ...chain) * 1.1));
    return {
      summary: `Line chart of tokens per cycle against number of guesses, 1 to 48. The chain reaches ${format.two(chain[47])}, the tree ${format.two(tree[47])}.`,
      x: SIZES,
      lines: [{ y: chain, color: "muted", width: 2.5 }, { y: tree, color: "gain", width: 3 }],
      xRange: [0, 49], yRange: [1, top], padRight: 52, xLabel: "guesses", yLabel: "tokens per cycle",
      xSplits: [1, 8, 16, 24, 32, 40, 48],
      pick: (at) => foredraft.state.set({ nodes: Math.max(1, Math.min(48, Math.round(at))) }),
      tip: (index) => `${SIZES[index]}: chain ${format.two(chain[index])}, tree ${format.two(tree[index])}`,
      paint: ({ x, y, label, dot, box }) => {
        dot(x(nodes), y(chain[nodes - 1]), 5, "muted");
        dot(x(nodes), y(tree[nodes - 1]), 6, "gain");
        const edge = box.left + box.width + 8 * devicePixelRatio;
        const apart = Math.abs(y(tree[47]) - y(chain[47])) < 16 * devicePixelRatio ? 9 * devicePixelRatio : 0;
        label("tree", edge, y(tree[47]) - apart, { tint: "gain", weight: 650 });
        label("chain", edge, y(chain[47]) + apart, { tint: "muted", weight: 650 });
      },
    };
  };

  const update = (model) => {
    draw(model);
    const { chain, tree } = growth(model);
    const shown = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48];
    chart.table(document.getElementById("trees-table"), ["Guesses", "Chain", "Tree"], shown.map((n) => [n, format.two(chain[n - 1]), format.two(tree[n - 1])]));
  };

  const start = () => {
    chart.create(document.getElementById("trees-chart"), describe);
    let width = 0;
    new ResizeObserver(() => {
      if (holder.clientWidth !== width) draw(foredraft.model.of(foredraft.state.get()));
      width = holder.clientWidth;
    }).observe(holder);
  };
  return { start, update };
})();
