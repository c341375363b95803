"use strict";
// Heads matched between runs: a row per run and layer, every head on demand; and who goes with whom, for the other parts.
(() => {
  const tests = hw.data.tests;
  const verdicts = ["same seed", "match", "no match", "too few heads to tell"];
  const referenceOf = new Map(tests.map((test) => [test.run, test.reference]));
  const matches = new Map();

  /** Heads of a run and their partners in its reference: [{head, partner, cost, margin, verdict}]. */
  async function matchesOf(r) {
    if (!matches.has(r)) {
      const packed = await hw.array(`match-${r}`);
      const n = packed.length / 5;
      matches.set(r, [...Array(n).keys()].map((i) => ({ head: packed[i], partner: packed[n + i], cost: packed[2 * n + i], margin: packed[3 * n + i], verdict: verdicts[packed[4 * n + i]] })));
    }
    return matches.get(r);
  }
  const sure = (match) => match && match.partner >= 0 && (match.verdict === "match" || match.verdict === "same seed");

  /** The picked head and its partners in all runs, where the match is more than chance: [{run, head, verdict}]. */
  cmp.partners = async ({ run, head }) => {
    const self = [{ run, head, verdict: "" }];
    let [reference, wanted] = [run, head];
    if (referenceOf.has(run)) {
      const own = (await matchesOf(run)).find((match) => match.head === head);
      if (!sure(own)) return self;
      [reference, wanted] = [referenceOf.get(run), own.partner];
      self.push({ run: reference, head: wanted, verdict: own.verdict });
    }
    for (const [other, its] of referenceOf) {
      const match = its === reference && other !== run && (await matchesOf(other)).find((m) => m.partner === wanted);
      if (sure(match)) self.push({ run: other, head: match.head, verdict: match.verdict });
    }
    return self;
  };

  hw.ready(() => {
    const into = hw.section("matching");
    if (!into) return;
    const layer = (i) => `L${String(tests[i].layer).padStart(2, "0")}`;
    const number = (key, title, tip) => ({ key, title, tip, number: true, value: (i) => tests[i][key] });
    hw.table(into, {
      label: "layers matched", count: () => tests.length, page: 16,
      columns: [
        { key: "run", title: "run", value: (i) => cmp.runs[tests[i].run].name },
        { key: "reference", title: "reference", value: (i) => cmp.runs[tests[i].reference].name },
        { key: "layer", title: "layer", value: layer },
        { key: "by", title: "matched by", value: (i) => tests[i].by },
        { key: "verdict", title: "verdict", value: (i) => tests[i].verdict },
        { key: "matched", title: "heads that match", number: true, value: (i) => tests[i].matched, text: String },
        number("heads", "of"), number("cost", "distance", "median over heads"), number("chance", "by chance", "mean distance of a pair in random deals"),
        number("margin", "margin", "median over heads"), number("p", "p"), number("p_adjusted", "adjusted p"),
        { key: "scope", title: "tested", tip: "the most local test that could show a match with so few heads", value: (i) => tests[i].scope },
      ],
    });

    const body = hw.el("div");
    async function build() {
      const rows = [];
      for (const r of referenceOf.keys()) for (const match of await matchesOf(r)) rows.push({ run: r, reference: referenceOf.get(r), ...match });
      const finite = (value) => (Number.isNaN(value) ? null : value);
      const table = hw.table(body, {
        label: "heads matched", count: () => rows.length, page: 25,
        columns: [
          { key: "run", title: "run", value: (i) => cmp.runs[rows[i].run].name },
          { key: "head", title: "head", value: (i) => cmp.nameOf(rows[i].run, rows[i].head) },
          { key: "reference", title: "reference", value: (i) => cmp.runs[rows[i].reference].name },
          { key: "partner", title: "its head", value: (i) => (rows[i].partner < 0 ? "–" : cmp.nameOf(rows[i].reference, rows[i].partner)) },
          { key: "cost", title: "distance", number: true, value: (i) => finite(rows[i].cost) },
          { key: "margin", title: "margin", number: true, value: (i) => finite(rows[i].margin) },
          { key: "verdict", title: "verdict", value: (i) => rows[i].verdict },
        ],
        onpick: (i) => cmp.picked.set({ run: rows[i].run, head: rows[i].head }),
        picked: (i) => cmp.picked.get()?.run === rows[i].run && cmp.picked.get()?.head === rows[i].head,
      });
      cmp.picked.listen(table.paint);
    }
    const heads = tests.reduce((sum, test) => sum + test.heads, 0);
    cmp.onDemand(into, body, build, `every head (${heads.toLocaleString("en")})`, false);
  });
})();
