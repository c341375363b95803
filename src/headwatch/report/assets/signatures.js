"use strict";
// Signatures over steps, their consistency (never without dispersion), and profile against signature.
hr.signatures = (body, kind, keys) => {
  hr.trajectories(body, kind, keys, "n_eff");
  body.append(hw.el("h3", {}, "Layer × head"));
  hr.maps(body, kind, keys, ["n_eff", "mutual_information"]);
  hr.consistency(body, keys);
};

hr.consistency = (body, keys) => {
  const measured = keys.filter((key) => hw.data.summary[`${key}_consistency`]);
  if (!measured.length) return;
  let key = measured[0];
  const lines = [["consistency", "mean correlation between documents", "solid", "plus", "circle"], ["dispersion", "spread over heads / mean", "dash", "two", "square"],
    ["drift", "1 − correlation with the snapshot before", "dot", "minus", "diamond"], ["noise_floor", "drift by chance alone", "dashdot", "faint", "triangle-up"]];
  body.append(hw.el("h3", {}, "Consistency and dispersion"),
    hw.el("p", { class: "note" }, "A signature that does not tell heads apart (dispersion near 0) is consistent without meaning. Its drift counts where it lies above the noise floor."),
    hw.el("div", { class: "controls" }, hw.choice("signature", measured.map((k) => [k, hr.title(k)]), key, (v) => { key = v; chart.draw(); })));
  const chart = hw.chart(body, () => ({
    data: lines.filter(([what]) => hw.data.summary[`${key}_${what}`]).map(([what, words, dash, colour, symbol]) => {
      const series = hw.data.summary[`${key}_${what}`];
      return { x: series.steps, y: series.values, mode: "lines+markers", name: `${what.replace("_", " ")}: ${words}`, line: { dash, color: hw.theme.colour(colour) }, marker: { symbol, size: 6 },
        hovertemplate: `${what}<br>step %{x}<br>%{y:.4g}<extra></extra>` };
    }),
    layout: { xaxis: { title: { text: "optimizer step" } }, yaxis: { title: { text: "correlation or ratio" } } },
  }), { height: 360, label: "consistency and dispersion of signatures" });
  hr.grown.listen(chart.draw);
};

hr.rankAndPeak = (body, profile, signature) => {
  const state = { x: "n_eff", y: "stable_rank" };
  const options = (kind) => kind.keys.filter((k) => !["head_type", "parity", "beyond_null"].includes(k)).map((k) => [k, hr.title(k)]);
  body.append(hw.el("div", { class: "controls" },
    hw.choice("signature", options(signature), state.x, (v) => { state.x = v; redraw(); }),
    hw.choice("profile", options(profile), state.y, (v) => { state.y = v; redraw(); })));
  const said = hw.el("p", { class: "note", role: "status" });
  body.append(said);

  const points = () => {
    const [p, s] = [profile.at(hr.step.get()), signature.at(hr.step.get())];
    const rows = [...Array(profile.count).keys()].filter((i) => signature.index.has(profile.labels[i]));
    return rows.map((i) => ({ i, group: hr.groupOf(profile, Math.max(p, 0), i), x: signature.value(state.x, s, signature.index.get(profile.labels[i])), y: profile.value(state.y, p, i) }))
      .filter(({ x, y }) => Number.isFinite(x) && Number.isFinite(y));
  };
  const ranks = (values) => { const order = values.map((v, i) => [v, i]).sort((p, q) => p[0] - q[0]); const out = []; order.forEach(([, i], r) => (out[i] = r)); return out; };
  function spearman(found) {
    const [x, y] = [ranks(found.map((f) => f.x)), ranks(found.map((f) => f.y))];
    const m = (found.length - 1) / 2;
    const sum = (f) => x.reduce((total, _, i) => total + f(i), 0);
    return sum((i) => (x[i] - m) * (y[i] - m)) / Math.sqrt(sum((i) => (x[i] - m) ** 2) * sum((i) => (y[i] - m) ** 2));
  }
  const chart = hw.chart(body, () => {
    const found = points();
    const groups = [...new Set(found.map((f) => f.group))].sort((p, q) => p - q);
    return {
      data: groups.map((group) => {
        const of = found.filter((f) => f.group === group);
        return {
          x: of.map((f) => f.x), y: of.map((f) => f.y), text: of.map((f) => profile.labels[f.i]), mode: "markers",
          name: hr.colouring.get() === "type" ? `type ${hr.typeNames[group] ?? "–"}` : hr.layerLabel(profile.layers[group]),
          marker: { size: of.map((f) => (hr.picked.get().has(profile.labels[f.i]) ? 17 : 11)), symbol: hr.shapeOf(group), color: hr.colourOf(group, profile.layers.length), line: { width: 1, color: hw.theme.colour("card") } },
          hovertemplate: `%{text}<br>${hr.title(state.x)} %{x:.4g}<br>${hr.title(state.y)} %{y:.4g}<extra></extra>`,
        };
      }),
      layout: { xaxis: { title: { text: hr.title(state.x) } }, yaxis: { title: { text: hr.title(state.y) } } },
    };
  }, { height: 440, label: "profile against signature", onready: (box) => box.on("plotly_click", (e) => hr.pick(e.points[0].text)) });
  function redraw() {
    const found = points();
    const step = signature.steps[signature.at(hr.step.get())];
    said.textContent = found.length > 2
      ? `Rank correlation ${hw.number(spearman(found))} over ${found.length} heads (signature of step ${hw.number(step)}). Heads of one model are not independent: read no significance into it.`
      : "Fewer than three heads have both numbers at this snapshot.";
    chart.draw();
  }
  [hr.step, hr.colouring, hr.picked, hr.grown].forEach((s) => s.listen(redraw));
  redraw();
};
