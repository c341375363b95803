"use strict";
// Differences between groups, and signatures compared.
hw.ready(() => {
  const found = hw.data.groupTests;
  if (!found) return;
  const { groups, rows } = found;
  const title = (key) => cmp.metrics.find((m) => m.key === key)?.title ?? key;
  hw.table(hw.section("groups"), {
    label: "differences between groups", count: () => rows.length, page: 25,
    columns: [
      { key: "metric", title: "metric (median over heads)", value: (i) => title(rows[i].metric) },
      { key: "layer", title: "layer", value: (i) => (rows[i].layer < 0 ? "all" : `L${String(rows[i].layer).padStart(2, "0")}`) },
      ...groups.map((group, g) => ({ key: `mean${g}`, title: group, tip: "mean over the group's runs", number: true, value: (i) => rows[i].means[g] })),
      { key: "p", title: "p", number: true, value: (i) => rows[i].p },
      { key: "p_adjusted", title: "adjusted p", number: true, value: (i) => rows[i].p_adjusted },
    ],
  });
});

hw.ready(() => {
  const into = hw.section("signatures");
  if (!into) return;
  const all = hw.data.signatures.map(([a, b, key, aligned, heads, whole, within, spreadA, spreadB]) => ({ a, b, key, aligned, heads, whole, within, spreadA, spreadB }));
  const keys = [...new Set(all.map((row) => row.key))];
  let key = keys[0];
  let rows = [];
  const choose = () => { rows = all.filter((row) => row.key === key); };
  choose();
  into.append(hw.el("div", { class: "controls" }, hw.choice("signature", keys.map((k) => [k, k]), key, (value) => { key = value; choose(); chart.draw(); table.refresh(); })));

  const n = cmp.runs.length;
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const chart = hw.chart(into, () => {
    const z = Array.from({ length: n }, () => Array(n).fill(null));
    for (const row of rows) {
      z[row.a][row.b] = row.whole;
      z[row.b][row.a] = row.within;
    }
    const names = cmp.runs.map((run, r) => `${r + 1} ${plain(run.name.length > 24 ? `${run.name.slice(0, 23)}…` : run.name)}`);
    const text = z.map((line) => line.map((value) => (value === null || n > 14 ? "" : value.toFixed(2))));
    return {
      data: [{ type: "heatmap", z, x: names, y: names, zmin: -1, zmax: 1, text, texttemplate: "%{text}", hoverongaps: false, colorbar: { title: { text: "Pearson" } },
        colorscale: [[0, "#b35806"], [0.25, "#f1a340"], [0.5, "#f7f7f7"], [0.75, "#998ec3"], [1, "#542788"]], hovertemplate: "%{y}<br>%{x}<br>%{z:.3f}<extra></extra>" }],
      layout: { yaxis: { autorange: "reversed", showgrid: false }, xaxis: { tickangle: -40, showgrid: false }, margin: { l: 160, b: 130, t: 20, r: 20 }, showlegend: false },
    };
  }, { height: Math.max(340, Math.min(900, 160 + 36 * n)), label: "correlation of signatures between runs" });

  const number = (field, title, tip) => ({ key: field, title, tip, number: true, value: (i) => rows[i][field] });
  const table = hw.table(into, {
    label: "signatures compared", count: () => rows.length, page: 15,
    columns: [
      { key: "a", title: "run", value: (i) => cmp.runs[rows[i].a].name }, { key: "b", title: "and run", value: (i) => cmp.runs[rows[i].b].name },
      { key: "aligned", title: "heads paired by", value: (i) => (rows[i].aligned === "no match" ? "assignment, no better than chance" : rows[i].aligned) },
      number("heads", "heads"), number("whole", "Pearson", "mean over heads removed"), number("within", "within layers", "each layer's mean removed"),
      number("spreadA", "dispersion of the one", "standard deviation over heads / |mean|"), number("spreadB", "of the other", "standard deviation over heads / |mean|"),
    ],
  });
});
