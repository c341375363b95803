"use strict";
// The two drifts in one plane: sideways along Θ a head takes a sign, downwards it becomes rank-one.
hr.twoDrifts = (into, kind, { shown, trail }) => {
  const [x, y] = ["theta_position", "stable_rank"];
  into.append(hw.el("h3", {}, "Two drifts: sideways along Θ, down to rank one"),
    hw.el("p", { class: "note" }, "Distance to Θ starts near 0 and cannot show the second one: the stable rank can."));

  function trails(s, members) {
    const line = { x: [], y: [] };
    const from = Math.max(0, s - trail());
    for (const i of members) {
      for (let t = from; t <= s; t++) { line.x.push(kind.value(x, t, i)); line.y.push(kind.value(y, t, i)); }
      line.x.push(null);
      line.y.push(null);
    }
    return { ...line, mode: "lines", line: { color: hw.theme.colour("faint"), width: 0.8 }, opacity: 0.55, hoverinfo: "skip", showlegend: false };
  }
  return hw.chart(into, () => {
    const s = Math.max(0, kind.at(hr.step.get()));
    const members = [...Array(kind.count).keys()].filter(shown);
    const groups = [...new Set(members.map((i) => hr.groupOf(kind, s, i)))].sort((p, q) => p - q);
    const marks = groups.map((group) => {
      const of = members.filter((i) => hr.groupOf(kind, s, i) === group);
      return {
        x: of.map((i) => kind.value(x, s, i)), y: of.map((i) => kind.value(y, s, i)), text: of.map((i) => kind.labels[i]), mode: "markers",
        marker: { size: of.map((i) => (hr.picked.get().has(kind.labels[i]) ? 17 : kind.count > 256 ? 6 : 11)), symbol: hr.shapeOf(group), color: hr.colourOf(group, kind.layers.length), line: { width: 1, color: hw.theme.colour("card") } },
        hovertemplate: "%{text}<br>position on Θ %{x:.3f}<br>stable rank %{y:.3f}<extra></extra>",
      };
    });
    const top = Math.log10(1.15 * Math.max(2, kind.span(y)[2] || 2));
    return {
      data: [...(trail() && members.length <= 400 ? [trails(s, members)] : []), ...marks],
      layout: {
        showlegend: false, margin: { t: 10 }, xaxis: { title: { text: "position on Θ  (−1: d,  0: M,  +1: c)" }, range: [-1.05, 1.05], zerolinecolor: hw.theme.colour("theta") },
        yaxis: { title: { text: "stable rank" }, type: "log", range: [-0.03, top], tickvals: [1, 2, 5, 10, 20, 50, 100, 200] },
      },
    };
  }, { height: 470, label: "position on Θ against stable rank", onready: (box) => box.on("plotly_click", (e) => { if (e.points[0]?.text) hr.pick(e.points[0].text); }) });
};
