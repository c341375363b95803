"use strict";
// All runs in one simplex, at one step or one loss; the slider at the foot of the window moves the whole page.
hw.ready(() => {
  const most = 4000; // marks that a canvas redraws without a stutter
  const into = hw.section("overlay");
  const values = new Map(); // "pi-0", "means-3" … once unpacked
  let marks = [];
  let choice = cmp.total <= 640 ? "all" : "means";
  let colouring = "run";
  let trail = 0;
  let wanted = 0;

  const options = [["means", "layer means"], ...(cmp.total <= most ? [["all", "all heads"]] : []), ...cmp.layers.map((layer) => [String(layer), `heads of L${String(layer).padStart(2, "0")}`])];
  const showing = hw.choice("show", options, choice, (value) => { choice = value; gather(); });
  const colourings = [["run", "run"], ...(cmp.groups.length > 1 ? [["group", "group"]] : []), ["layer", "layer"]];
  into.append(hw.el("div", { class: "controls" }, showing,
    hw.choice("colour by", colourings, colouring, (value) => { colouring = value; simplex.draw(); }),
    hw.choice("side by side at equal", [["step", "step"], ["loss", "loss"]].filter(([key]) => hw.data.axes[key].length), cmp.axis.get(), (value) => cmp.axis.set(value)),
    hw.choice("trail", [["0", "none"], ["4", "short"], ["1000", "whole"]], "0", (value) => { trail = Number(value); simplex.draw(); })));
  cmp.legend(into);
  const said = hw.el("p", { class: "note", "aria-live": "polite" });

  const arrayOf = (m) => values.get(m.head < 0 ? `means-${m.run}` : `pi-${m.run}`);
  const depth = Math.max(...cmp.layers) + 1;
  const heads = {
    get count() { return marks.length; },
    profile: (i, s) => cmp.profile(arrayOf(marks[i]), marks[i].run, marks[i].at, marks[i].of, s),
    label: (i, s) => lines(marks[i], heads.profile(i, s), s),
    colour: (i) => ({ run: () => cmp.colour(marks[i].run), group: () => hw.marks.group(cmp.runs[marks[i].run].group), layer: () => hw.marks.depth(marks[i].layer, depth) })[colouring](),
    shape: (i) => cmp.shape(marks[i].run),
    shown: (i) => cmp.shown(marks[i].run),
    picked: (i) => partners.has(`${marks[i].run} ${marks[i].head}`),
    onpick: (i) => { if (marks[i].head >= 0) cmp.picked.set({ run: marks[i].run, head: marks[i].head }); },
    trail: () => trail,
  };
  const simplex = hw.simplex(into, heads);
  into.append(said);

  function lines(m, p, s) {
    const run = cmp.runs[m.run];
    const name = m.head < 0 ? `L${String(m.layer).padStart(2, "0")}, mean of its heads` : cmp.nameOf(m.run, m.head);
    const b = cmp.around(m.run, s);
    return [run.name, `${name} · ${run.modules[m.layer]}`, cmp.words(cmp.positions()[s]) + (b.inside ? "" : " (outside the run: its nearest snapshot)"),
      `a ${hw.number(p[0])}  b ${hw.number(p[1])}  c ${hw.number(p[2])}  d ${hw.number(p[3])}`];
  }

  /** Marks of the present choice; heads are unpacked only when they are asked for. */
  async function gather() {
    const turn = ++wanted;
    const kind = choice === "means" ? "means" : "pi";
    await Promise.all(cmp.runs.map(async (_, r) => values.set(`${kind}-${r}`, await hw.array(`${kind}-${r}`))));
    if (turn !== wanted) return;
    marks = cmp.runs.flatMap((run, r) => {
      const layers = cmp.layersOf(r);
      if (kind === "means") return layers.map((layer, i) => ({ run: r, head: -1, layer, at: i, of: layers.length }));
      return run.layer.map((layer, h) => ({ run: r, head: h, layer, at: h, of: run.layer.length })).filter((m) => choice === "all" || m.layer === Number(choice));
    });
    simplex.draw();
    into.dataset.marks = String(marks.length);
  }

  let partners = new Set();
  cmp.picked.listen(async (pick) => {
    const group = await cmp.partners(pick);
    partners = new Set(group.map(({ run, head }) => `${run} ${head}`));
    said.textContent = `${cmp.runs[pick.run].name} ${cmp.nameOf(pick.run, pick.head)}` +
      (group.length > 1 ? ` goes with ${group.filter((g) => g.run !== pick.run).map((g) => `${cmp.nameOf(g.run, g.head)} of ${cmp.runs[g.run].name} (${g.verdict})`).join(", ")}` : ": no partner in other runs that is more than chance");
    const layer = String(cmp.runs[pick.run].layer[pick.head]);
    if (choice === "means") { choice = layer; showing.querySelector("select").value = layer; await gather(); }
    simplex.draw();
  });

  const dock = hw.el("div");
  document.body.append(hw.el("div", { class: "dock" }, dock));
  const player = hw.player(dock, cmp.positions().length, (s) => cmp.words(cmp.positions()[s]), (s) => { cmp.place.set(s); simplex.show(s); });
  cmp.axis.listen(() => { player.stop(); player.grow(cmp.positions().length); player.show(cmp.positions().length - 1); });
  cmp.onShown(() => simplex.draw());
  cmp.simplex = simplex;
  gather();
});
