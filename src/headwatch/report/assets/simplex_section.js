"use strict";
// The section with the three-dimensional simplex: colours by type or layer, legend that hides groups, trails, layer filter.
hr.simplexSection = () => {
  const kind = hr.kinds.profile;
  const body = hw.section("simplex");
  let trail = kind.count > 256 ? 8 : 1e9;
  const index = () => Math.max(0, kind.at(hr.step.get()));
  const inLayer = (i) => hr.layerFilter.get() === "all" || kind.layer[i] === Number(hr.layerFilter.get());
  const profile = [NaN, NaN, NaN, NaN];
  const [a, b, c, d] = ["a", "b", "c", "d"];

  const controls = hw.el("div", { class: "controls" });
  const legend = hw.el("div", { class: "legend", "aria-label": "legend; press an entry to hide its heads" });
  controls.append(
    hw.choice("colour by", [["type", "type"], ["layer", "layer"]], hr.colouring.get(), (v) => { hr.hidden.set(new Set()); hr.colouring.set(v); }),
    hw.choice("layer", [["all", "all"], ...kind.layers.map((l) => [l, `L${String(l).padStart(2, "0")}`])], "all", hr.layerFilter.set),
    hw.choice("trail", [[0, "none"], [4, "4 snapshots"], [8, "8 snapshots"], [1e9, "all"]], String(trail), (v) => { trail = Number(v); redraw(); }),
    hw.el("button", { type: "button", onclick: () => hr.picked.set(new Set()) }, "unmark all"),
  );
  const [left, right] = [hw.el("div"), hw.el("div")];
  const absent = hw.el("p", { class: "absent trouble", role: "status" });
  body.append(controls, legend, absent, hw.el("div", { class: "wide-pair" }, left, right));

  const shown = (i) => inLayer(i) && !hr.hidden.get().has(hr.groupOf(kind, index(), i));
  const view = hw.simplex(left, {
    get count() { return kind.count; },
    profile(i, s) {
      const at = s * kind.count + i;
      profile[0] = kind.matrices[a][at];
      profile[1] = kind.matrices[b][at];
      profile[2] = kind.matrices[c][at];
      profile[3] = kind.matrices[d][at];
      return profile;
    },
    label: (i, s) => [
      `${kind.labels[i]}  ${kind.modules[kind.module[i]]}`,
      `type ${hr.typeNames[hr.typeOf(kind, s, i)] ?? "–"}   step ${hw.number(kind.steps[s])}`,
      `a ${hw.number(kind.value(a, s, i))}  b ${hw.number(kind.value(b, s, i))}  c ${hw.number(kind.value(c, s, i))}  d ${hw.number(kind.value(d, s, i))}`,
      `stable rank ${hw.number(kind.value("stable_rank", s, i))}   position on Θ ${hw.number(kind.value("theta_position", s, i))}`,
      `distance to Θ ${hw.number(kind.value("theta_distance", s, i))}   pairing ${hw.number(kind.value("pairing", s, i))}`,
      ...[kind.status[i] === "proven" ? null : kind.status[i], kind.flags[i]].filter(Boolean),
    ],
    colour: (i, s) => hr.colourOf(hr.groupOf(kind, s, i), kind.layers.length),
    shape: (i, s) => hr.shapeOf(hr.groupOf(kind, s, i)),
    shown,
    picked: (i) => hr.picked.get().has(kind.labels[i]),
    onpick: (i) => hr.pick(kind.labels[i]),
    trail: () => trail,
  });
  const swatch = (group) => {
    const canvas = hw.el("canvas", { width: 36, height: 36, style: "width:18px;height:18px" });
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    hw.marks.paint(context, hr.shapeOf(group), 9, 9, 6, hr.colourOf(group, kind.layers.length), hw.theme.colour("card"));
    return canvas;
  };

  const words = ["II balanced", "I+ attends to the like", "I− attends to the unlike"];
  function drawLegend() {
    const byType = hr.colouring.get() === "type";
    const groups = byType ? [1, 0, 2] : kind.layers.map((_, i) => i);
    const counts = new Map();
    for (let i = 0; i < kind.count; i++) { const g = hr.groupOf(kind, index(), i); counts.set(g, (counts.get(g) ?? 0) + 1); }
    const entry = (group) => hw.el("button", {
      type: "button", "aria-pressed": String(!hr.hidden.get().has(group)),
      onclick: () => { const next = new Set(hr.hidden.get()); if (!next.delete(group)) next.add(group); hr.hidden.set(next); },
    }, swatch(group), byType ? `${words[group]} (${counts.get(group) ?? 0})` : `L${String(kind.layers[group]).padStart(2, "0")}`);
    const theta = hw.el("span", {}, hw.el("span", { style: "color:var(--theta);font-weight:700" }, "━ "), "Θ: rank-one forms, through M");
    legend.replaceChildren(...groups.map(entry), theta);
  }

  const drifts = hr.twoDrifts(right, kind, { shown, trail: () => trail });
  function redraw() { hr.tellAbsence(absent, kind, a, index()); drawLegend(); view.show(index()); drifts.draw(); }
  [hr.step, hr.colouring, hr.hidden, hr.layerFilter, hr.picked, hr.grown].forEach((s) => s.listen(redraw));
  hw.theme.listen(drawLegend);
  redraw();
  hr.simplexView = view;
};
