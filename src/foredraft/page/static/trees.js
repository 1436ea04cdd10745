/* The same number of guesses as a chain and as a tree, drawn; and how each grows. */
"use strict";

foredraft.trees = (() => {
  const { economics, format, chart, survival } = foredraft;
  const holder = document.getElementById("trees");
  const svg = survival.element("svg", { class: "tree", role: "img" }, holder);
  const SIZES = Array.from({ length: 48 }, (_, i) => i + 1);
  const LABEL = 20;

  // Depth gives x; leaves are laid out one under the other, and a parent sits halfway between its first and last child.
  const layout = (tree) => {
    const children = tree.parents.map(() => []);
    const roots = [];
    tree.parents.forEach((parent, node) => (parent < 0 ? roots : children[parent]).push(node));
    const place = tree.parents.map(() => null);
    let leaves = 0;
    const between = (nodes) => (place[nodes[0]].line + place[nodes.at(-1)].line) / 2;
    const visit = (node, depth) => {
      place[node] = { depth, line: 0 };
      children[node].forEach((child) => visit(child, depth + 1));
      if (children[node].length) place[node].line = between(children[node]);
      else {
        place[node].line = leaves;
        leaves += 1;
      }
    };
    roots.forEach((node) => visit(node, 1));
    return { place, lines: leaves, root: { depth: 0, line: between(roots) } };
  };

  // How far apart: wide enough to read, small enough to fit.
  const scaleFor = (depth, lines, width) => {
    const step = Math.min(84, (width - 34) / depth);
    const room = Math.min(40, 420 / lines);
    const labels = step >= 40 && room >= 34;
    const radius = Math.max(3.2, Math.min(9, step * 0.3, room * 0.42));
    return { step, radius, labels, line: labels ? 40 : Math.min(room, radius * 2 + 7) };
  };

  const drawOne = (tree, top, title, width) => {
    const { place, lines, root } = layout(tree);
    const scale = scaleFor(economics.treeDepth(tree), lines, width);
    const reach = economics.reach(tree);
    const x = (depth) => 12 + depth * scale.step;
    const y = (line) => top + LABEL + 16 + line * scale.line;
    const group = survival.element("g", {}, svg);
    survival.element("text", { class: "tree-title", x: 0, y: top + 12 }, group).textContent = title;
    tree.parents.forEach((parent, node) => {
      const from = parent < 0 ? root : place[parent];
      const [x0, y0, x1, y1] = [x(from.depth), y(from.line), x(place[node].depth), y(place[node].line)];
      const middle = (x0 + x1) / 2;
      survival.element(
        "path",
        {
          class: "edge",
          d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`,
          style: `opacity:${0.22 + 0.78 * reach[node]};stroke-width:${1.2 + 2.6 * reach[node]}`,
        },
        group,
      );
    });
    survival.element(
      "rect",
      { class: "node-root", x: x(0) - 8, y: y(root.line) - 8, width: 16, height: 16, rx: 4 },
      group,
    );
    tree.parents.forEach((_, node) => {
      const { depth, line } = place[node];
      const at = { cx: x(depth), cy: y(line), r: scale.radius };
      survival.element("circle", { class: "node-base", ...at }, group);
      const circle = survival.element(
        "circle",
        { class: "node", ...at, style: `fill-opacity:${0.06 + 0.94 * reach[node]}` },
        group,
      );
      survival.element("title", {}, circle).textContent = `counts ${format.percent(reach[node])} of the time`;
      if (scale.labels) {
        survival.element(
          "text",
          { class: "node-label", x: at.cx, y: at.cy + scale.radius + 12, "text-anchor": "middle" },
          group,
        ).textContent = format.percent(reach[node]);
      }
    });
    return LABEL + 22 + lines * scale.line;
  };

  const draw = (model) => {
    const width = holder.clientWidth;
    if (!width) return;
    const { nodes } = model.state;
    const chain = format.two(model.chainTokens);
    const tree = format.two(model.treeTokens);
    svg.replaceChildren();
    const chainHeight = drawOne(
      model.chain,
      0,
      `${nodes === 1 ? "One guess" : `${nodes} guesses`} as a chain: ${chain} tokens per cycle`,
      width,
    );
    const height =
      chainHeight + 14 + drawOne(model.tree, chainHeight + 14, `The same as a tree: ${tree} tokens per cycle`, width);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.setAttribute(
      "aria-label",
      `${nodes} guesses as a chain of depth ${nodes}, and as a tree of depth ${model.treeDepth}. ` +
        `The chain yields ${chain} tokens per cycle, the tree ${tree}.`,
    );
  };

  // The best tree of n nodes is the first n of the best tree of 48: one tree gives the whole curve.
  const growth = (model) => {
    const running = (tree) => {
      let total = 1;
      return economics.reach(tree).map((chance) => (total += chance));
    };
    return {
      chain: running(foredraft.model.chainOf(model.state, 48)),
      tree: running(foredraft.model.treeOf(model.state, 48)),
    };
  };

  const describe = (model) => {
    const { chain, tree } = growth(model);
    const { nodes } = model.state;
    const top = Math.max(2, Math.ceil(Math.max(...tree, ...chain) * 1.1));
    return {
      summary: `Line chart of tokens per cycle against number of guesses, 1 to 48. The chain reaches ${format.two(chain[47])}, the tree ${format.two(tree[47])}.`,
      x: SIZES,
      lines: [
        { y: chain, color: "muted", width: 2.5 },
        { y: tree, color: "gain", width: 3 },
      ],
      xRange: [0, 49],
      yRange: [1, top],
      padRight: 52,
      xLabel: "guesses",
      yLabel: "tokens per cycle",
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

  const start = () => {
    chart.create(document.getElementById("trees-chart"), describe);
    chart.table(document.getElementById("trees-table"), ["Guesses", "Chain", "Tree"], (model) => {
      const { chain, tree } = growth(model);
      return [1, 2, 4, 6, 8, 12, 16, 24, 32, 48].map((n) => [n, format.two(chain[n - 1]), format.two(tree[n - 1])]);
    });
    let width = 0;
    new ResizeObserver(() => {
      if (holder.clientWidth !== width) draw(foredraft.model.of(foredraft.state.get()));
      width = holder.clientWidth;
    }).observe(holder);
  };
  return { start, update: draw };
})();
