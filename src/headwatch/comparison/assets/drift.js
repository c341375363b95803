"use strict";
// The drift table: every head of every run, unpacked when it is asked for.
hw.ready(() => {
  const into = hw.section("drift");
  const { numbers, steps } = hw.data.drift;
  const rows = []; // [run, head]
  cmp.runs.forEach((run, r) => run.head.forEach((_, h) => rows.push([r, h])));
  const values = [];
  const offset = [];

  const titles = {
    theta_position_start: "position on Θ: start", theta_position_end: "end", theta_distance_start: "distance to Θ: start", theta_distance_end: "end",
    stable_rank_start: "stable rank: start", stable_rank_end: "end", pairing_start: "pairing: start", pairing_end: "end",
    drift: "drift", path_length: "path", left_null_step: "left chance at step", low_rank_step: "rank < 2 at step",
    parity_start: "parity: start", parity_end: "end", parity_changes: "flips",
  };
  function column(key, name, at) {
    const read = (i) => {
      const [r, h] = rows[i];
      const n = cmp.runs[r].head.length;
      const value = values[r][name][at * n + h];
      return Number.isNaN(value) ? null : value;
    };
    return { key, title: titles[key], tip: key, number: true, value: read };
  }
  const fixed = [
    { key: "run", title: "run", value: (i) => cmp.runs[rows[i][0]].name },
    { key: "head", title: "head", value: (i) => cmp.nameOf(...rows[i]) },
    { key: "module", title: "module", value: (i) => cmp.runs[rows[i][0]].modules[cmp.runs[rows[i][0]].layer[rows[i][1]]] },
  ];
  const order = ["drift", "path_length", "left_null_step", "stable_rank_start", "stable_rank_end", "low_rank_step", "theta_position_start", "theta_position_end",
    "theta_distance_start", "theta_distance_end", "pairing_start", "pairing_end", "parity_start", "parity_end", "parity_changes"];
  const measured = order.map((key) => (steps.includes(key) ? column(key, "steps", steps.indexOf(key)) : column(key, "numbers", numbers.indexOf(key))));

  async function build() {
    await Promise.all(cmp.runs.map(async (_, r) => { values[r] = { numbers: await hw.array(`drift-${r}`), steps: await hw.array(`drift-steps-${r}`) }; }));
    const table = hw.table(body, {
      columns: [...fixed, ...measured], count: () => rows.length, page: 25, label: "drift of every head",
      onpick: (i) => cmp.picked.set({ run: rows[i][0], head: rows[i][1] }),
      picked: (i) => { const pick = cmp.picked.get(); return pick !== null && pick.run === rows[i][0] && pick.head === rows[i][1]; },
    });
    table.sort("drift");
    cmp.picked.listen(table.paint);
  }
  const body = hw.el("div");
  cmp.onDemand(into, body, build, `${rows.length.toLocaleString("en")} heads`, rows.length <= 5000);
});
